"""Reports: every candidate is in them with its verdict, also those that the walk did not reach."""

from __future__ import annotations

from pathlib import Path

from chockstone.checkpoints.errors import ResumeBlocked, StoreDenied
from chockstone.checkpoints.restoring.verdicts import Verdict
from chockstone.checkpoints.restoring.walk_back import WalkBack
from chockstone.checkpoints.resume.attempts.attempt import Attempt
from chockstone.checkpoints.resume.attempts.candidates import Candidate, Origin
from chockstone.checkpoints.resume.attempts.places import AttemptPlaces
from chockstone.checkpoints.resume.walk.candidate_scanner import ScanResult
from chockstone.checkpoints.resume.walk.report import Outcome, ResumeReport
from chockstone.checkpoints.resume.walk.reporter import ResumeReporter, blocked, exhausted
from chockstone.checkpoints.resume.walk.rules import ResumeRules


def results(tmp_path: Path, places: AttemptPlaces) -> list[ScanResult]:
    denied = ScanResult(Candidate(f"{tmp_path}/a2", Origin.DERIVED, 2), None, error=StoreDenied("not yours"))
    empty = Candidate(f"{tmp_path}/a1", Origin.DERIVED, 1)
    return [denied, ScanResult(empty, Attempt.inspect(places.open(empty.uri)))]


def report(reporter: ResumeReporter, walk: WalkBack[ScanResult], outcome: Outcome, **more: object) -> ResumeReport:
    facts = {"place": "s3://b/a3", "attempt": 3, "identity": {"chain": "run"}, "rules": ResumeRules()}
    return reporter.report(walk, outcome, **facts, **more)  # type: ignore[arg-type]  # as they are above


def test_what_the_walk_did_not_reach_is_in_the_report_with_its_verdict(tmp_path: Path) -> None:
    places = AttemptPlaces()
    reporter = ResumeReporter(["a note"], places.cost, None)
    found = results(tmp_path, places)
    walk = WalkBack(found)
    settled = [Candidate(f"{tmp_path}/a0", Origin.DERIVED, 0)]
    for result in walk:
        walk.failed(result.error or OSError())
        reporter.record(result, walk, result.error)

    made = report(reporter, walk, "blocked", untried=found, settled=settled, more_requests=1)

    assert [(each.attempt, each.verdict, each.reached) for each in made.looked] == [
        (2, Verdict.DENIED, True),
        (1, Verdict.ABSENT, False),
        (0, Verdict.SETTLED, False),
    ]
    assert made.notes == ("a note",)
    assert made.requests == 2, "one listing, and one to write the report"


def test_refusals_carry_the_report_and_name_the_worst_candidate(tmp_path: Path) -> None:
    reporter = ResumeReporter([], AttemptPlaces().cost, None)
    found = results(tmp_path, AttemptPlaces())[:1]
    walk = WalkBack(found)
    for result in walk:
        walk.failed(result.error or OSError())
        reporter.record(result, walk, result.error)
    made = report(reporter, walk, "blocked")

    error = blocked(made, Verdict.DENIED)

    assert isinstance(error, ResumeBlocked)
    assert (error.verdict, error.report) == (Verdict.DENIED, made)
    assert "not yours" in str(error)
    assert exhausted(made).report is made
