from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import pytest

from chockstone.api.context import Context
from chockstone.console.pages.doctor import group_findings, repair_command
from chockstone.engine.doctor.findings import FindingKind
from chockstone.wire.messages.operations.doctor import DoctorFinding, DoctorResponse
from support.api.users import User
from support.page_visitor import Markup, PageVisitor


async def examined(root: PageVisitor) -> str:
    """The part of the page, once an examination has ended."""
    for _ in range(2000):
        answer = await root.open("/console/doctor/examination", **{"HX-Request": "true"})
        assert answer.status_code == 200, answer.text
        if not Markup(answer.text).having("data-test", "examining"):
            return answer.text
        await asyncio.sleep(0.01)
    raise AssertionError("the examination did not end")


async def test_an_archive_without_a_row_is_shown_with_the_command_that_repairs_it(
    root: PageVisitor, context: Context, users: dict[str, User]
) -> None:
    await users["ann"].save(await users["ann"].run(), "a")
    archive = next((context.config.data / "checkpoints").rglob("*.tar"))
    archive.with_name("copied.tar").write_bytes(archive.read_bytes()[:1000])

    first = await root.open("/console/doctor")
    found = Markup(await examined(root))

    assert first.status_code == 200
    assert found.refused_by_policy() == []
    assert found.having("data-test", "finding")
    assert f"chockstone doctor --data {context.config.data} --fix" in found.text
    assert "copied" in found.text


async def test_a_healthy_server_says_so(root: PageVisitor, users: dict[str, User]) -> None:
    await users["ann"].save(await users["ann"].run(), "a")

    assert "Store and catalog agree" in await examined(root)


async def test_the_doctor_is_for_admins(ann: PageVisitor) -> None:
    assert (await ann.open("/console/doctor")).status_code == 403
    assert (await ann.open("/console/doctor/examination")).status_code == 403
    assert (await ann.post("/console/doctor/examination")).status_code == 403
    assert "nav-doctor" not in (await ann.open("/console")).text


async def test_a_new_examination_needs_the_token_of_the_session(root: PageVisitor) -> None:
    assert (await root.post("/console/doctor/examination", but={"X-Console-Token": None})).status_code == 403
    assert (await root.post("/console/doctor/examination")).status_code == 200


def finding(kind: str, *, is_harmless: bool = False) -> DoctorFinding:
    return DoctorFinding(
        kind=kind,
        title="archive without a row",
        subject="x",
        size_bytes=1,
        detail="",
        cause="c",
        remedy="r",
        is_harmless=is_harmless,
    )


def test_findings_are_grouped_by_kind_with_harmless_ones_last() -> None:
    found = DoctorResponse(
        state="done",
        started_at=datetime.now(UTC),
        counts={"orphan": 2000},
        findings=[finding("empty_directory", is_harmless=True), *[finding("orphan")] * 150],
    )

    orphans, directories = group_findings(found, "--data /data")

    assert (orphans.kind, orphans.title, len(orphans.findings)) == ("orphan", "2,000 × archive without a row", 100)
    assert (directories.kind, directories.command) == ("empty_directory", None)


@pytest.mark.parametrize("kind", list(FindingKind))
def test_every_kind_has_a_command_or_no_repair(kind: FindingKind) -> None:
    command = repair_command(kind.value, "--data '/srv/my data'")

    if kind in (FindingKind.UNREADABLE, FindingKind.EMPTY_DIRECTORY):
        assert command is None
    else:
        assert command is not None
        look, repair = command.splitlines()
        assert look == f"{repair} --dry-run"
        assert "--data '/srv/my data' --fix" in repair


def test_what_is_deleted_for_good_needs_its_own_flag() -> None:
    assert "--remove-damaged" in str(repair_command("known_damaged", "--data /data"))
    assert "--remove-orphans" in str(repair_command("stray", "--data /data"))
    assert "--remove" not in str(repair_command("damaged", "--data /data"))
