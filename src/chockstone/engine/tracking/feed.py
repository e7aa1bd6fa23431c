"""Feeds: keep one tracker up to date with the step history and the checkpoints of runs.

A feed reads the history from the last point that its tracker took. It gets the ids of runs with new points, and reads
those runs when the tracker is free, so that nothing queues up for a slow one.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Final, Protocol

from chockstone.catalog import Catalog, CatalogError, CheckpointRow, RowMissing, RunRow
from chockstone.engine.history.step_history import HistoryPage
from chockstone.engine.tracking.sent_marks import MAX_SAVES, SentMark, SentMarks
from chockstone.engine.tracking.tracker_process import TrackerBatch, TrackerFailed, TrackerProcess
from chockstone.trackers.tracker import LEARNING_RATE, TrackedCheckpoint, TrackedPoint, TrackedRun

log = logging.getLogger(__name__)
_POINTS: Final = 500  # in one batch
_GATHER_SECONDS: Final = 1.0  # between two passes
_RECENT_SECONDS: Final = 900.0  # for so long after its last point a run is looked at for checkpoints
_CHECKPOINT_SECONDS: Final = 10.0  # between two looks for checkpoints
_RATE_SECONDS: Final = 10.0  # to wait for the first optimizer step of a run, whose learning rate is a setting
_FIRST_RETRY_SECONDS: Final = 5.0
_LAST_RETRY_SECONDS: Final = 300.0
_MISSED_SECONDS: Final = 600.0  # before the last time that all was sent: the catalog's times lag behind
_RUNS: Final = 500  # in one query


class PointReader(Protocol):
    """What a feed needs of the step history."""

    async def read(self, run_id: str, *, after: int, limit: int) -> HistoryPage: ...


class TrackerFeed:
    """``keep`` runs as one task; ``note`` may be called at any time and never waits."""

    def __init__(
        self,
        tracker: TrackerProcess,
        history: PointReader,
        catalog: Catalog,
        marks: SentMarks,
        *,
        now: Callable[[], datetime],
        monotonic: Callable[[], float] = time.monotonic,
        gather_seconds: float = _GATHER_SECONDS,
    ) -> None:
        self._tracker = tracker
        self._history = history
        self._catalog = catalog
        self._marks = marks
        self._now = now
        self._monotonic = monotonic
        self._gather_seconds = gather_seconds
        self._wake = asyncio.Event()
        self._stopping = asyncio.Event()
        self._waiting: dict[str, None] = {}  # runs that may have something to send, the longest waiting first
        self._noted: dict[str, float] = {}  # by recent run: when it last had a new point
        self._unlooked: set[str] = set()  # runs to look at for checkpoints
        self._first_seen: dict[str, float] = {}  # by run whose learning rate is not known yet
        self._failures: dict[str, int] = {}  # by run: in a row
        self._retry_at: dict[str, float] = {}
        self._is_failing = False
        self._looked_at = 0.0

    def note(self, run_id: str) -> None:
        """The run has new points."""
        self._waiting[run_id] = None
        if run_id not in self._noted:
            self._unlooked.add(run_id)
        self._noted[run_id] = self._monotonic()
        self._wake.set()

    async def note_missed(self) -> None:
        """Note the runs that were used since the tracker last had all points, and forget removed runs. Never raises.

        A tracker that is used for the first time gets runs that train from now on, from their first point.
        """
        try:
            caught_up = await asyncio.to_thread(self._marks.caught_up_at)
            known: set[str] = set()
            while caught_up is not None and (rows := await self._runs(len(known))):
                for row in rows:
                    known.add(row.run_id)
                    if row.last_request_at.timestamp() >= caught_up - _MISSED_SECONDS:
                        self.note(row.run_id)
            if caught_up is not None:
                await asyncio.to_thread(self._marks.keep_only, known)
        except CatalogError as error:
            log.warning("missed points of a tracker not found tracker=%s error=%s", self._tracker.kind, error)

    async def keep(self) -> None:
        """Send what the tracker missed while no server ran, and then what comes, until ``stop``."""
        await self.note_missed()
        while not self._stopping.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), self._next_seconds())
            self._wake.clear()
            self._note_recent()
            await self.send_waiting()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), self._gather_seconds)

    def stop(self) -> None:
        """Let ``keep`` return after the batch that is under way: its answer says what to send next."""
        self._stopping.set()
        self._wake.set()

    async def flush(self) -> None:
        """Send all that is left, also of runs that wait for a retry. To be called when ``keep`` has returned."""
        self._stopping.clear()
        self._retry_at.clear()
        self._first_seen = dict.fromkeys(self._first_seen, -_RATE_SECONDS)
        self._look_for_checkpoints()
        await self.send_waiting()

    async def send_waiting(self) -> None:
        """One pass over the runs that have something to send. Never raises."""
        now = self._monotonic()
        due = [run_id for run_id in self._waiting if self._retry_at.get(run_id, now) <= now]
        for run_id in due:
            if self._stopping.is_set():
                return
            del self._waiting[run_id]
            try:
                await self._send_run(run_id)
            except (TrackerFailed, CatalogError, OSError) as error:
                self._note_failure(run_id, error)
            except Exception as error:
                log.exception("tracker feed failed tracker=%s run=%s", self._tracker.kind, run_id)
                self._note_failure(run_id, error)
        if not self._waiting:
            try:
                await asyncio.to_thread(self._marks.note_caught_up, self._now().timestamp())
            except OSError as error:
                log.debug("mark of a tracker not written tracker=%s error=%s", self._tracker.kind, error)

    async def _send_run(self, run_id: str) -> None:
        try:
            row = await self._catalog.runs.get(run_id)
        except RowMissing:
            self._forget(run_id)
            await asyncio.to_thread(self._marks.forget, run_id)
            return
        mark = await asyncio.to_thread(self._marks.read, run_id)
        while True:
            page = await self._history.read(run_id, after=mark.position, limit=_POINTS)
            saves = [] if page.has_more else await self._new_saves(run_id, mark)
            rate = mark.learning_rate if mark.learning_rate is not None else _learning_rate(page)
            if (not page.points and not saves) or self._waits_for_rate(run_id, mark, rate):
                return
            points = [TrackedPoint(each.position, each.at, each.step, each.values) for each in page.points]
            checkpoints = [_checkpoint(each) for each in saves]
            await self._tracker.send(TrackerBatch(_facts(row, rate), points, checkpoints))
            mark = mark.after(
                position=points[-1].position if points else mark.position,
                saves=tuple(each.save_id for each in saves),
                learning_rate=rate,
            )
            await asyncio.to_thread(self._marks.write, run_id, mark)
            self._note_success(run_id)
            if not page.has_more or self._stopping.is_set():
                return

    async def _runs(self, offset: int) -> Sequence[RunRow]:
        return (await self._catalog.runs.list(None, limit=_RUNS, offset=offset)).rows

    async def _new_saves(self, run_id: str, mark: SentMark) -> list[CheckpointRow]:
        """Of the newest ones, at most as many as the mark remembers."""
        if run_id not in self._unlooked:
            return []
        rows = await self._catalog.checkpoints.list_by_run(run_id, now=self._now(), limit=MAX_SAVES)
        self._unlooked.discard(run_id)
        return sorted((row for row in rows if row.save_id not in mark.saves), key=lambda row: row.save_id)

    def _waits_for_rate(self, run_id: str, mark: SentMark, rate: float | None) -> bool:
        """Trackers take settings best with the first point: give a new run time for its first optimizer step."""
        if rate is not None or mark.position > 0:
            self._first_seen.pop(run_id, None)
            return False
        waited = self._monotonic() - self._first_seen.setdefault(run_id, self._monotonic())
        if waited >= _RATE_SECONDS:
            return False
        self._waiting[run_id] = None
        self._retry_at[run_id] = self._monotonic() + self._gather_seconds
        return True

    def _next_seconds(self) -> float:
        """Until a run is to be tried again, or to be looked at for checkpoints."""
        now = self._monotonic()
        waits = [self._retry_at.get(run_id, now) - now for run_id in self._waiting]
        return max(0.0, min([_CHECKPOINT_SECONDS, *waits]))

    def _note_recent(self) -> None:
        """Look for checkpoints of runs that had points not long ago: a save is no point."""
        now = self._monotonic()
        if now - self._looked_at < _CHECKPOINT_SECONDS:
            return
        self._looked_at = now
        self._noted = {run_id: at for run_id, at in self._noted.items() if now - at < _RECENT_SECONDS}
        self._look_for_checkpoints()

    def _look_for_checkpoints(self) -> None:
        self._waiting |= dict.fromkeys(self._noted)
        self._unlooked |= self._noted.keys()

    def _note_failure(self, run_id: str, error: Exception) -> None:
        """The run is tried again later, and the others are not delayed. One warning, until the tracker works again."""
        failures = self._failures[run_id] = self._failures.get(run_id, 0) + 1
        self._waiting[run_id] = None
        self._unlooked.add(run_id)
        self._retry_at[run_id] = self._monotonic() + min(
            _LAST_RETRY_SECONDS, _FIRST_RETRY_SECONDS * 2 ** min(failures - 1, 10)
        )
        if not self._is_failing:
            self._is_failing = True
            log.warning(
                "tracker failed, points are kept and sent again later tracker=%s run=%s error=%s",
                *(self._tracker.kind, run_id, error),
            )

    def _note_success(self, run_id: str) -> None:
        self._failures.pop(run_id, None)
        self._retry_at.pop(run_id, None)
        if self._is_failing and not self._failures:
            self._is_failing = False
            log.info("tracker works again tracker=%s", self._tracker.kind)

    def _forget(self, run_id: str) -> None:
        self._unlooked.discard(run_id)
        for known in (self._noted, self._first_seen, self._failures, self._retry_at):
            known.pop(run_id, None)


def _facts(row: RunRow, learning_rate: float | None) -> TrackedRun:
    rank = row.spec.get("rank", 0)
    return TrackedRun(
        run_id=row.run_id,
        owner=row.owner,
        base_model=row.base_model,
        rank=rank if isinstance(rank, int) else 0,
        created_at=row.created_at.timestamp(),
        learning_rate=learning_rate,
        metadata=dict(row.user_metadata),
    )


def _learning_rate(page: HistoryPage) -> float | None:
    return next((point.values[LEARNING_RATE] for point in page.points if LEARNING_RATE in point.values), None)


def _checkpoint(row: CheckpointRow) -> TrackedCheckpoint:
    return TrackedCheckpoint(row.path, row.kind, row.step or 0, row.created_at.timestamp())
