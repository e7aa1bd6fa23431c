from __future__ import annotations

from datetime import UTC, datetime

import httpx
import pytest

from chockstone.api.context import Context
from chockstone.catalog import AuditEvent, AuditRow
from chockstone.catalog.searches.audit_search import AuditCursor
from chockstone.console.pages.audit import describe, read_cursor
from chockstone.wire.failures import BadRequest
from support.api.users import User
from support.page_visitor import Markup, PageVisitor


def events(answer: httpx.Response) -> list[str | None]:
    assert answer.status_code == 200, answer.text
    return [given["data-event"] for given in Markup(answer.text).having("data-test", "audit-entry")]


async def test_users_see_their_own_entries_and_admins_see_all(
    ann: PageVisitor, root: PageVisitor, users: dict[str, User]
) -> None:
    own = await users["ann"].save(await users["ann"].run(), "mine")
    theirs = await users["bob"].save(await users["bob"].run(), "theirs")

    seen, all_seen = await ann.open("/console/audit"), await root.open("/console/audit")

    assert own in seen.text  # to copy
    assert theirs not in seen.text
    assert own in all_seen.text
    assert theirs in all_seen.text
    assert Markup(seen.text).refused_by_policy() == []
    assert theirs in (await root.open("/console/audit?user=bob")).text
    assert own not in (await root.open("/console/audit?user=bob")).text


async def test_users_find_what_another_user_did_to_their_things_as_the_api_does(
    ann: PageVisitor, users: dict[str, User]
) -> None:
    run_id = await users["ann"].run()
    await users["ann"].save(run_id, "shared")
    theirs = await users["bob"].save(await users["bob"].run(), "theirs")
    await users["ann"].http.post(f"training_runs/{run_id}/checkpoints/weights/shared/publish")
    await users["bob"].http.get(f"training_runs/{run_id}/checkpoints/weights/shared/archive")

    page = await ann.open("/console/audit?user=bob")
    listed = (await users["ann"].http.get("audit", params={"user": "bob"})).json()["entries"]

    assert events(page) == [entry["event"] for entry in listed] == ["checkpoint_read"]
    assert theirs not in page.text
    assert "No entry matches" in (await ann.open("/console/audit?user=nobody")).text


async def test_an_empty_audit_teaches_what_is_recorded(ann: PageVisitor) -> None:
    assert "are recorded here" in (await ann.open("/console/audit")).text
    assert "No entry matches" in (await ann.open("/console/audit?run=none")).text


async def test_entries_are_found_by_run_and_action(ann: PageVisitor, users: dict[str, User]) -> None:
    run_id = await users["ann"].run()
    await users["ann"].save(run_id, "a")
    await users["ann"].http.delete(f"training_runs/{run_id}/checkpoints/weights/a")
    await users["ann"].save(await users["ann"].run(), "b")

    assert len(events(await ann.open("/console/audit"))) == 3
    assert len(events(await ann.open(f"/console/audit?run={run_id}"))) == 2
    assert events(await ann.open("/console/audit?action=checkpoint_deleted")) == ["checkpoint_deleted"]


async def test_earlier_entries_are_on_further_pages(ann: PageVisitor, context: Context) -> None:
    moment = datetime(2030, 1, 1, tzinfo=UTC)
    await context.catalog.audit.record_many([AuditEvent(f"x_{number:03}", "ann", moment) for number in range(130)])

    first = await ann.open("/console/audit")
    [more] = [given["hx-get"] for given in Markup(first.text).having("hx-get") if "cursor" in str(given["hx-get"])]
    second = await ann.open(str(more), **{"HX-Request": "true"})

    found = [*events(first), *events(second)]
    assert found == [f"x_{number:03}" for number in reversed(range(130))]
    assert not Markup(second.text).having("data-test", "page-audit")


async def test_markup_in_entries_and_filters_stays_text(ann: PageVisitor, context: Context) -> None:
    attack = "<script>alert(1)</script>"
    context.engine.audit(attack, owner="ann", run_id=attack, purpose=attack, details={attack: attack, "by": attack})

    page = Markup((await ann.open("/console/audit")).text)
    filtered = Markup((await ann.open(f"/console/audit?run={attack}&action={attack}")).text)

    assert attack in page.text
    assert page.refused_by_policy() == filtered.refused_by_policy() == []


@pytest.mark.parametrize("cursor", ["x", "1~", "1~2030-01-01", "-1~2030-01-01T00:00:00+00:00"])
def test_a_foreign_cursor_is_refused(cursor: str) -> None:
    with pytest.raises(BadRequest, match="cursor"):
        read_cursor(cursor)


def test_a_cursor_is_read_as_it_was_written() -> None:
    moment = datetime(2030, 1, 1, 12, 0, 0, 5, UTC)

    assert read_cursor(f"7~{moment.isoformat()}") == AuditCursor(moment, 7)


def test_details_are_shown_in_units_and_cut() -> None:
    facts = {"a": "x" * 999, "n": 12345, "size_bytes": 2048, "ttl_seconds": 7200.0, "by": "bob"}
    row = AuditRow(1, "checkpoint_saved", "ann", datetime.now(UTC), "r", "tinker://r/weights/a", "sample", facts)

    shown = describe(row)

    assert dict(shown.details) == {
        "a": "x" * 300 + "…",
        "n": "12,345",
        "size": "2.0 kB",
        "expires after": "2 h",
        "purpose": "sample",
    }
    assert (shown.by, shown.checkpoint) == ("bob", "weights/a")
