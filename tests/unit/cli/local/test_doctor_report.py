from __future__ import annotations

import json
from pathlib import Path

import pytest

from chockstone.cli.local.doctor_report import report
from chockstone.engine.doctor.findings import Examination, Finding, FindingKind
from chockstone.engine.doctor.repairs import AllowedRepairs, Repair
from chockstone.engine.doctor.visit import Visit

DATA = Path("/data")
MISSING = Finding(FindingKind.MISSING, "tinker://s:train:0/weights/a")
STRAY = Finding(FindingKind.STRAY, "s.train.0/weights/b", 3_000_000, "it does not say what it is")
EMPTY = Finding(FindingKind.EMPTY_DIRECTORY, "/data/checkpoints/x")
ORPHAN = Finding(FindingKind.ORPHAN, "s.train.0/weights/c", 10)


def visit(
    *findings: Finding, repairs: tuple[Repair, ...] = (), is_served: bool = False, has_catalog: bool = True
) -> Visit:
    examination = Examination(
        findings, checkpoints=2, archives=3, size_bytes=5_000_000, saves_under_way=1, trash=0, verified=frozenset()
    )
    return Visit(examination, repairs, is_served=is_served, has_catalog=has_catalog)


def printed(
    capsys: pytest.CaptureFixture[str], seen: Visit, allowed: AllowedRepairs | None = None, **facts: bool
) -> tuple[int, str]:
    code = report(DATA, seen, allowed, **{"dry_run": False, "as_json": False, **facts})
    return code, capsys.readouterr().out


@pytest.mark.parametrize("findings", [(), (EMPTY,)])
def test_a_directory_without_problems_is_healthy(
    capsys: pytest.CaptureFixture[str], findings: tuple[Finding, ...]
) -> None:
    code, out = printed(capsys, visit(*findings))

    assert code == 0
    assert "/data: 2 checkpoints in the catalog, 3 archives, 5 MB in the store" in out.replace("5.0 MB", "5 MB")
    assert out.endswith("healthy: store and catalog agree\n")


def test_problems_are_listed_with_their_remedy_and_the_exit_code_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    code, out = printed(capsys, visit(MISSING, STRAY))

    assert code == 1
    assert "1 checkpoint without bytes" in out and f"    {MISSING.subject}" in out
    assert "it does not say what it is" in out
    assert "2 findings" in out and "`chockstone doctor --fix` repairs 1\n" in out


@pytest.mark.parametrize(
    ("finding", "allowed", "dry_run", "words"),
    [
        (MISSING, None, False, "`chockstone doctor --fix` repairs all"),
        (MISSING, AllowedRepairs(), True, "would repair all"),
        (STRAY, None, False, "`chockstone doctor --fix` repairs none: the remedies are above"),
        (STRAY, AllowedRepairs(), True, "this command repairs none: the remedies are above"),
        (STRAY, AllowedRepairs(), False, "left; the remedies are listed above"),
    ],
)
def test_the_last_line_says_what_could_be_repaired(
    capsys: pytest.CaptureFixture[str], finding: Finding, allowed: AllowedRepairs | None, dry_run: bool, words: str
) -> None:
    _, out = printed(capsys, visit(finding), allowed, dry_run=dry_run)

    assert words in out.splitlines()[-1]


def test_repairs_are_listed_with_what_they_freed_and_failures_need_somebody(capsys: pytest.CaptureFixture[str]) -> None:
    done = Repair(STRAY, "deleted", 3_000_000)
    failed = Repair(MISSING, "", failure="the disk is not mounted")

    code, out = printed(capsys, visit(repairs=(done, failed)), AllowedRepairs())

    assert code == 1
    assert "  s.train.0/weights/b: deleted" in out
    assert f"  {MISSING.subject}: not repaired: the disk is not mounted" in out
    assert "repaired 1 finding, " in out and "freed" in out
    assert "private and do not expire" not in out


def test_checkpoints_that_are_listed_again_are_private(capsys: pytest.CaptureFixture[str]) -> None:
    code, out = printed(capsys, visit(repairs=(Repair(ORPHAN, "listed as x"),)), AllowedRepairs())

    assert code == 0
    assert "the repaired ones are private and do not expire" in out


def test_of_many_findings_of_a_kind_twenty_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    findings = [Finding(FindingKind.PARTIAL, f"part-{number:02}") for number in range(25)]

    _, out = printed(capsys, visit(*findings))

    assert out.count("    part-") == 20
    assert "… and 5 more; --json lists all" in out


def test_a_name_from_outside_cannot_command_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    _, out = printed(capsys, visit(Finding(FindingKind.STRAY, "a\x1b[2Jb")))

    assert "\x1b" not in out


def test_what_the_reader_must_know_first_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    _, served = printed(capsys, visit(MISSING, is_served=True))
    _, lost = printed(capsys, visit(has_catalog=False), was_lost=True)

    assert "A server is running here, with 1 save in progress" in served
    assert "`chockstone doctor --rebuild` makes one" in lost
    assert "Create keys with `chockstone keys create USER`" in lost


def test_json_has_everything(capsys: pytest.CaptureFixture[str]) -> None:
    repairs = (Repair(STRAY, "deleted", 3_000_000),)

    code, out = printed(
        capsys, visit(MISSING, repairs=repairs), AllowedRepairs(), as_json=True, dry_run=True, was_lost=True
    )

    document = json.loads(out)
    assert code == 1
    assert (document["data"], document["is_healthy"], document["dry_run"]) == ("/data", False, True)
    assert (document["checkpoints"], document["archives"], document["size_bytes"]) == (2, 3, 5_000_000)
    assert document["catalog_was_lost"]
    [finding], [repair] = document["findings"], document["repairs"]
    assert (finding["kind"], finding["subject"]) == ("missing", MISSING.subject) and finding["remedy"]
    assert (repair["kind"], repair["done"], repair["freed_bytes"]) == ("stray", "deleted", 3_000_000)
