from __future__ import annotations

import pytest

from chockstone.engine.doctor.findings import Examination, Finding, FindingKind
from chockstone.engine.doctor.repairs import AllowedRepairs

HARMLESS = {FindingKind.EMPTY_DIRECTORY}
LASTING = {"damaged", "swapped", "known_damaged", "healed", "unreadable"}  # what only the bytes tell


def examined(*findings: Finding) -> Examination:
    return Examination(
        findings, checkpoints=0, archives=0, size_bytes=0, saves_under_way=0, trash=0, verified=frozenset()
    )


@pytest.mark.parametrize("kind", FindingKind)
def test_only_an_empty_directory_is_no_problem(kind: FindingKind) -> None:
    finding = Finding(kind, "s.train.0/weights/a")

    assert kind.is_harmless == (kind in HARMLESS)
    assert examined(finding).problems == (() if kind in HARMLESS else (finding,))


@pytest.mark.parametrize("kind", FindingKind)
def test_what_a_server_does_between_two_steps_may_look_like_any_finding_but_those_of_bytes(kind: FindingKind) -> None:
    assert kind.may_be_momentary == (kind.value not in LASTING)


def test_saves_are_ended_before_rows_and_rows_before_archives() -> None:
    """A repair of an archive must not take away what a save or a row needs."""
    order = list(FindingKind)

    assert order[0] is FindingKind.STUCK
    assert order.index(FindingKind.MISSING) < order.index(FindingKind.ORPHAN) < order.index(FindingKind.STRAY)
    assert (
        order.index(FindingKind.RECOVERY) < order.index(FindingKind.PARTIAL) < order.index(FindingKind.EMPTY_DIRECTORY)
    )


def test_a_finding_is_the_same_if_kind_and_subject_are() -> None:
    first, again = Finding(FindingKind.PARTIAL, "x", 5, "new"), Finding(FindingKind.PARTIAL, "x", 9)

    assert first.key == again.key
    assert first.key not in {Finding(FindingKind.STRAY, "x").key, Finding(FindingKind.PARTIAL, "y").key}


def test_problems_keep_the_order_of_findings() -> None:
    kinds = (FindingKind.EMPTY_DIRECTORY, FindingKind.STRAY, FindingKind.STUCK)
    findings = [Finding(kind, kind.value) for kind in kinds]

    assert [each.subject for each in examined(*findings).problems] == ["stray", "stuck"]


def test_without_more_orders_nothing_is_removed_that_may_be_wanted() -> None:
    refused = {kind for kind in FindingKind if not AllowedRepairs().includes(kind)}

    assert refused == {FindingKind.UNREADABLE, FindingKind.KNOWN_DAMAGED, FindingKind.RIVAL, FindingKind.STRAY}
