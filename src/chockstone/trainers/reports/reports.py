"""Reports: the interface of a trainer's outputs, several of them as one, and a thread that calls them."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol

log = logging.getLogger(__name__)

Level = Literal["info", "warning", "error"]
_LEVELS: Final[Mapping[Level, int]] = {"info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
_SAVED: Final = re.compile(r"\bstep-(\d+) saved in ([\d.]+) s")


@dataclass(frozen=True, slots=True)
class StepRecord:
    """The metrics of one training step."""

    step: int
    metrics: Mapping[str, float]  # flat: "reward/mean", "time/train"
    samples: Sequence[Mapping[str, Any]] = ()  # one row per sample that the step trained on; plain data


class Report(Protocol):
    """One output. Calls come one at a time, in a worker thread; they may block and may raise."""

    def resume(self, step: int) -> None:
        """Called once, before the first record. Drop records of later steps: a crash discarded those steps.

        Step 0 is a fresh start: drop all records.
        """

    def record(self, record: StepRecord) -> None: ...

    def evaluated(self, step: int, metrics: Mapping[str, float]) -> None:
        """Record an evaluation. It may come after the records of later steps."""

    def event(self, text: str, *, level: Level = "info") -> None:
        """Record a text for people, e.g. "checkpoint step-00000010 saved in 0.4 s". May come before ``resume``."""

    def close(self) -> None:
        """Flush and release. May be called again; no other call follows."""


class EventReporter(Protocol):
    def __call__(self, text: str, *, level: Level = "info") -> None: ...


class Reports:
    """Several reports behind the interface of one.

    Never raises. A report that raises is closed and removed, its traceback is logged, and the others get an event
    with its name.
    """

    def __init__(self, reports: Iterable[Report]) -> None:
        self._reports = list(reports)

    def add(self, report: Report) -> None:
        """One more, before the first record."""
        self._reports.append(report)

    def resume(self, step: int) -> None:
        self._call_all(lambda report: report.resume(step))

    def record(self, record: StepRecord) -> None:
        self._call_all(lambda report: report.record(record))

    def evaluated(self, step: int, metrics: Mapping[str, float]) -> None:
        self._call_all(lambda report: report.evaluated(step, metrics))

    def event(self, text: str, *, level: Level = "info") -> None:
        self._call_all(lambda report: report.event(text, level=level))

    def close(self) -> None:
        """Close and remove all reports. Later calls do nothing."""
        while self._reports:
            self._call(self._reports.pop(0), lambda report: report.close())

    def _call_all(self, call: Callable[[Report], None]) -> None:
        for report in tuple(self._reports):
            if any(report is each for each in self._reports):  # else it was removed while this loop ran
                self._call(report, call)

    def _call(self, report: Report, call: Callable[[Report], None]) -> None:
        try:
            call(report)
        except Exception as error:
            name = type(report).__name__
            log.exception("report failed and was removed report=%s", name)
            self._reports = [each for each in self._reports if each is not report]
            self._close_broken(report)
            text = f"{name} failed and was removed: {type(error).__name__}: {error}"
            self.event(text, level="error")  # the recursion ends: each failure removes one report

    def _close_broken(self, report: Report) -> None:
        try:
            report.close()
        except Exception as error:  # noqa: BLE001  # its first error was reported
            log.debug("failed report could not be closed report=%s error=%r", type(report).__name__, error)


class BackgroundReports:
    """Calls the reports in one thread of its own, in order. No method blocks the event loop."""

    def __init__(self, reports: Reports) -> None:
        self._reports = reports
        self._thread = ThreadPoolExecutor(1, "chockstone-reports")

    async def resume(self, step: int) -> None:
        await self._call(self._reports.resume, step)

    async def record(self, record: StepRecord) -> None:
        """Return when the record is written, so that training never runs ahead of its records."""
        await self._call(self._reports.record, record)

    async def evaluated(self, step: int, metrics: Mapping[str, float]) -> None:
        await self._call(self._reports.evaluated, step, metrics)

    def report_event(self, text: str, *, level: Level = "info") -> None:
        """Log the event, and pass it to the reports without waiting."""
        log.log(_LEVELS[level], "%s", text)
        self._thread.submit(self._reports.event, text, level=level)

    async def close(self) -> None:
        self._thread.submit(self._reports.close)
        await asyncio.to_thread(self._thread.shutdown)

    async def _call(self, call: Callable[..., None], *arguments: object) -> None:
        """Cancelling the caller does not cancel the call."""
        await asyncio.shield(asyncio.wrap_future(self._thread.submit(call, *arguments)))


def saved_text(step: int, seconds: float, path: str) -> str:
    """Return the event of a finished save. ``read_saved_text`` reads it back from the files of a run."""
    return f"checkpoint step-{step:08d} saved in {seconds:.1f} s: {path}"


def read_saved_text(text: str) -> tuple[int, float] | None:
    """Return step and seconds of a save, or None if ``text`` is another event."""
    found = _SAVED.search(text)
    return None if found is None else (int(found[1]), float(found[2]))
