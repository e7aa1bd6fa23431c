"""The auditor: writes down what a walk comes past, and makes the report of it."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict

from chockstone.checkpoints.errors import ResumeBlocked, ResumeExhausted
from chockstone.checkpoints.resume.cost import Cost
from chockstone.checkpoints.resume.lookout import Item
from chockstone.checkpoints.resume.places import Place, normalise, status_of
from chockstone.checkpoints.resume.report import Looked, Outcome, Report
from chockstone.checkpoints.resume.rules import Rules
from chockstone.checkpoints.resume.verdicts import Verdict
from chockstone.checkpoints.resume.walking import WalkBack

log = logging.getLogger(__name__)


class Auditor:
    """Of one chain. Warnings and notes stay; lines and cost are those of the walk that was begun last."""

    def __init__(self, notes: Sequence[str] = ()) -> None:
        self.notes = list(notes)
        self.warnings: list[str] = []
        self._charged: dict[int, tuple[int, int, int, float]] = {}
        self.begin()

    def begin(self) -> None:
        self._started = time.perf_counter()
        self._cost = Cost()
        self._lines: list[Looked] = []

    def warn(self, text: str) -> None:
        self.warnings.append(text)
        log.warning("resume %s", text)

    def record(self, item: Item, walk: WalkBack[Item], trouble: Exception | None) -> None:
        """What was said last of a candidate."""
        look = walk.looked[-1]
        requests, retries, size, seconds = self._charge(item.attempt.place) if item.attempt else (0, 0, 0, 0.0)
        self._cost.add(requests, size, seconds, retries=retries)
        self._lines.append(
            Looked(
                uri=normalise(item.candidate.uri),
                origin=item.candidate.origin,
                verdict=look.verdict,
                reason=look.reason if look.readings == 1 else f"{look.reason} (read twice)",
                attempt=item.candidate.attempt,
                generation=item.generation.name if item.generation else None,
                step=look.step,
                status=status_of(trouble),
                requests=requests,
                retries=retries,
                size_bytes=size,
                milliseconds=round(seconds * 1000, 1),
            )
        )

    def _charge(self, place: Place) -> tuple[int, int, int, float]:
        """What the place has cost since it was last asked for it."""
        cost = place.cost
        now = (cost.requests, cost.retries, cost.bytes, cost.seconds)
        before = self._charged.get(id(place), (0, 0, 0, 0.0))
        self._charged[id(place)] = now
        return now[0] - before[0], now[1] - before[1], now[2] - before[2], now[3] - before[3]

    def report(
        self,
        walk: WalkBack[Item],
        outcome: Outcome,
        *,
        place: str,
        attempt: int | None,
        identity: Mapping[str, str],
        rules: Rules,
    ) -> Report:
        chosen = self._lines[-1] if walk.choice is not None and self._lines else None
        lost = walk.steps_lost
        if chosen is not None and lost:
            self.warn(f"{lost} steps are lost: newer ones could not be used")
        elif chosen is not None and lost is None:
            self.warn("newer ones could not be used, and how many steps that costs is not known")
        report = Report(
            place=place,
            attempt=attempt,
            identity=identity,
            outcome=outcome,
            looked=tuple(self._lines),
            choice=chosen,
            steps_lost=lost,
            requests=self._cost.requests,
            retries=self._cost.retries,
            size_bytes=self._cost.bytes,
            milliseconds=round((time.perf_counter() - self._started) * 1000, 1),
            warnings=tuple(self.warnings),
            notes=tuple(self.notes),
            settings=asdict(rules),
        )
        log.info("%s", report.line())
        if outcome == "fresh":
            log.info("resume fresh start looked_at=%s", [each.uri for each in report.looked])
        return report


def exhausted(report: Report) -> ResumeExhausted:
    listed = "".join(f"\n  {each.uri} {each.generation or ''}: {each.verdict}, {each.reason}" for each in report.looked)
    return ResumeExhausted(
        "something was committed in this chain and none of it can be used, so it does not start at zero by itself:"
        f"{listed}\nLook at it with `chockstone resume explain`, restore it from a backup, or begin anew with "
        "acknowledge_fresh_start().",
        report=report,
    )


def blocked(report: Report, verdict: Verdict) -> ResumeBlocked:
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
        "a restore was broken off before it was decided what to go on from, and a save would come before all that "
        "there is: restore again, or call acknowledge_fresh_start() to begin anew.",
        verdict=Verdict.UNREACHABLE,
    )


def unfit(error: Exception) -> ResumeBlocked:
    return ResumeBlocked(
        f"a saved state was found and does not fit what it was to be restored into: {error} Correct the model, or "
        "call acknowledge_fresh_start() to begin anew.",
        verdict=Verdict.UNREACHABLE,
    )
