"""The resume reporter: records the verdict and cost of each candidate of a walk, and makes the report."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence

from chockstone.checkpoints.errors import ResumeBlocked, ResumeExhausted, StoreUnreachable
from chockstone.checkpoints.restoring.verdicts import Verdict, judge
from chockstone.checkpoints.restoring.walk_back import WalkBack
from chockstone.checkpoints.resume.attempts.attempt import Attempt
from chockstone.checkpoints.resume.attempts.candidates import Candidate
from chockstone.checkpoints.resume.attempts.cost import Cost, CostSnapshot
from chockstone.checkpoints.resume.attempts.places import AttemptPlace, normalise, status_of
from chockstone.checkpoints.resume.walk.candidate_scanner import ScanResult
from chockstone.checkpoints.resume.walk.report import CandidateReport, Outcome, ResumeReport
from chockstone.checkpoints.resume.walk.restore_attempt import empty_verdict
from chockstone.checkpoints.resume.walk.rules import ResumeRules

log = logging.getLogger(__name__)


class ResumeReporter:
    """Reports on one chain. Warnings, notes and cost add up over all walks; candidates are those of the last walk."""

    def __init__(self, notes: Sequence[str], total: Cost, since: CostSnapshot | None) -> None:
        """``total``: the cost of all places. ``since``: its value to subtract; None: its present value."""
        self.notes = list(notes)
        self.warnings: list[str] = []
        self._total = total
        self._since = total.spent if since is None else since
        self.begin()

    def begin(self) -> None:
        self._started = time.perf_counter()
        self._lines: list[CandidateReport] = []
        self._charged: dict[int, CostSnapshot] = {}

    def warn(self, text: str) -> None:
        self.warnings.append(text)
        log.warning("resume %s", text)

    def record(self, result: ScanResult, walk: WalkBack[ScanResult], error: Exception | None) -> None:
        """Record the last verdict of the walk."""
        last = walk.judged[-1]
        reason = last.reason if last.readings == 1 else f"{last.reason} (read twice)"
        self._add(result, last.verdict, reason, step=last.step, status=status_of(error))

    def _record_untried(self, results: Sequence[ScanResult]) -> None:
        """Record the places that were listed and that the walk did not reach, each once."""
        known = {line.uri for line in self._lines}
        for result in results:
            uri = normalise(result.candidate.uri)
            if uri in known:
                continue
            known.add(uri)
            if result.error is not None or result.attempt is None:
                error = result.error or StoreUnreachable("it was not looked at")
                verdict, reason, status = judge(error), str(error), status_of(error)
            elif result.generation is None:
                (verdict, reason), status = _untried_verdict(result.attempt), None
            else:
                count = len(result.attempt.generations)
                what = "a generation" if count == 1 else f"{count} generations"
                verdict, reason, status = Verdict.UNTRIED, f"{what}, not opened: the decision was made before", None
            self._add(result, verdict, reason, status=status, reached=False)

    def _add(
        self,
        result: ScanResult,
        verdict: Verdict,
        reason: str,
        *,
        step: int | None = None,
        status: int | None = None,
        reached: bool = True,
    ) -> None:
        spent = self._charge(result.attempt.place) if result.attempt else CostSnapshot()
        self._lines.append(
            CandidateReport(
                uri=normalise(result.candidate.uri),
                origin=result.candidate.origin,
                verdict=verdict,
                reason=reason,
                attempt=result.candidate.attempt,
                generation=result.generation.name if result.generation else None,
                step=step,
                status=status,
                requests=spent.requests,
                retries=spent.retries,
                size_bytes=spent.bytes,
                milliseconds=round(spent.seconds * 1000, 1),
                reached=reached,
            )
        )

    def _charge(self, place: AttemptPlace) -> CostSnapshot:
        """Return the cost of the place since the last call for it."""
        now, before = place.cost.spent, self._charged.get(id(place.cost), CostSnapshot())
        self._charged[id(place.cost)] = now
        return now - before

    def report(
        self,
        walk: WalkBack[ScanResult],
        outcome: Outcome,
        *,
        place: str,
        attempt: int | None,
        identity: Mapping[str, str],
        rules: ResumeRules,
        untried: Sequence[ScanResult] = (),
        settled: Sequence[Candidate] = (),
        more_requests: int = 0,
    ) -> ResumeReport:
        """Make the report.

        ``untried``: results of places that the walk did not reach. ``settled``: candidates that were not listed.
        ``more_requests``: requests that will write this report.
        """
        chosen = self._lines[-1] if walk.choice is not None and self._lines else None
        self._record_untried(untried)
        for candidate in settled:
            self._add(
                ScanResult(candidate, None),
                Verdict.SETTLED,
                "not asked: fenced, with nothing to restore",
                reached=False,
            )
        spent = self._total.spent - self._since
        lost = walk.steps_lost
        if chosen is not None and lost:
            self.warn(f"{lost} steps are lost: newer ones could not be used")
        elif chosen is not None and lost is None:
            self.warn("newer ones could not be used, and how many steps that costs is not known")
        report = ResumeReport(
            place=place,
            attempt=attempt,
            identity=identity,
            outcome=outcome,
            looked=tuple(self._lines),
            choice=chosen,
            steps_lost=lost,
            requests=spent.requests + more_requests,
            retries=spent.retries,
            size_bytes=spent.bytes,
            milliseconds=round((time.perf_counter() - self._started) * 1000, 1),
            warnings=tuple(self.warnings),
            notes=tuple(self.notes),
            settings=rules.as_json(),
        )
        log.info("%s", report.line())
        if outcome == "fresh":
            log.info("resume fresh start looked_at=%s", [each.uri for each in report.looked])
        return report


def _untried_verdict(attempt: Attempt) -> tuple[Verdict, str]:
    """Return verdict and reason for a place without generations that the walk did not reach."""
    if attempt.flyte_native:
        return Verdict.UNTRIED, f"{len(attempt.flyte_native)} of Flyte's native files, or copies for Flyte, not opened"
    return empty_verdict(attempt)


def exhausted(report: ResumeReport) -> ResumeExhausted:
    listed = "".join(f"\n  {each.uri} {each.generation or ''}: {each.verdict}, {each.reason}" for each in report.looked)
    return ResumeExhausted(
        "something was committed in this chain and none of it can be used, so it does not start at zero by itself:"
        f"{listed}\nLook at it with `chockstone resume explain`, restore it from a backup, or start from zero with "
        "acknowledge_fresh_start().",
        report=report,
    )


def blocked(report: ResumeReport, verdict: Verdict) -> ResumeBlocked:
    worst = next((each for each in report.looked if each.verdict.stops), None)
    what = f"{worst.uri}: {worst.verdict}, {worst.reason}" if worst else "the walk broke off"
    if verdict is Verdict.LOCAL and worst is not None:
        return ResumeBlocked(
            f"this machine cannot restore the checkpoint at {worst.uri}: {worst.reason}. The checkpoint is not at "
            "fault and stays the one to resume from. Free the space or raise the limit that is named, and restore "
            "again, here or in the next attempt.",
            verdict=verdict,
            report=report,
        )
    return ResumeBlocked(
        f"cannot tell what to resume from, so nothing older is taken and nothing starts at zero: {what}. "
        "Mend that and try again; `chockstone resume explain` shows all that was looked at.",
        verdict=verdict,
        report=report,
    )


def broken_off() -> ResumeBlocked:
    return ResumeBlocked(
        "a restore was broken off before it was decided what to resume from, and a save would rank before everything "
        "that exists: restore again, or call acknowledge_fresh_start() to start from zero.",
        verdict=Verdict.UNREACHABLE,
    )


def unfit(error: Exception) -> ResumeBlocked:
    return ResumeBlocked(
        f"a saved state was found and does not fit what it was to be restored into: {error} Correct the model, or "
        "call acknowledge_fresh_start() to start from zero.",
        verdict=Verdict.UNREACHABLE,
    )
