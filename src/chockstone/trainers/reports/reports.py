"""Reports: where a trainer tells how it goes, and several of them as one."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

log = logging.getLogger(__name__)

Level = Literal["info", "warning", "error"]


@dataclass(frozen=True, slots=True)
class StepRecord:
    step: int
    metrics: Mapping[str, float]  # flat: "reward/mean", "time/train"
    samples: Sequence[Mapping[str, Any]] = ()  # one row for each sample that this step trained; plain data


class Report(Protocol):
    """Called one at a time, in worker threads, never on an event loop; may block and may raise."""

    def resume(self, step: int) -> None:
        """Called once, before the first record. What stands there of later steps is of a life that was lost: drop it.

        0 is a fresh start, and all of what stands there is dropped.
        """

    def record(self, record: StepRecord) -> None: ...

    def evaluated(self, step: int, metrics: Mapping[str, float]) -> None:
        """May come after the records of later steps."""

    def event(self, text: str, *, level: Level = "info") -> None:
        """For people, e.g. "checkpoint step-00000010 saved in 0.4 s". May come before ``resume``."""

    def close(self) -> None:
        """What was told is where it belongs on return. May be called again; no other call follows."""


class Reports:
    """Several reports as one, called as one is.

    Never raises because of one: a report that does is named to the others and left out from then on, and its
    traceback is logged.
    """

    def __init__(self, reports: Iterable[Report]) -> None:
        self._reports = list(reports)

    def resume(self, step: int) -> None:
        self._tell(lambda report: report.resume(step))

    def record(self, record: StepRecord) -> None:
        self._tell(lambda report: report.record(record))

    def evaluated(self, step: int, metrics: Mapping[str, float]) -> None:
        self._tell(lambda report: report.evaluated(step, metrics))

    def event(self, text: str, *, level: Level = "info") -> None:
        self._tell(lambda report: report.event(text, level=level))

    def close(self) -> None:
        """After this, calls reach nobody."""
        while self._reports:
            self._attempt(self._reports.pop(0), lambda report: report.close())

    def _tell(self, call: Callable[[Report], None]) -> None:
        for report in tuple(self._reports):
            if any(report is each for each in self._reports):  # else it was left out while this loop ran
                self._attempt(report, call)

    def _attempt(self, report: Report, call: Callable[[Report], None]) -> None:
        try:
            call(report)
        except Exception as error:
            name = type(report).__name__
            log.exception("report failed and is left out report=%s", name)
            self._reports = [each for each in self._reports if each is not report]
            self._close_broken(report)
            text = f"{name} failed and is left out from here on: {type(error).__name__}: {error}"
            self.event(text, level="error")  # ends: each failure leaves one fewer to tell

    def _close_broken(self, report: Report) -> None:
        try:
            report.close()
        except Exception as error:  # noqa: BLE001  # its first failure says more
            log.debug("report failed again when closed report=%s error=%r", type(report).__name__, error)
