"""Tracking: a feed for each tracker of the server, and the subscription that tells them of new points."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Final

from chockstone.catalog import Catalog
from chockstone.engine.history.step_history import StepHistory
from chockstone.engine.tracking.feed import TrackerFeed
from chockstone.engine.tracking.sent_marks import SentMarks
from chockstone.engine.tracking.tracker_process import TrackerProcess
from chockstone.trackers.tracker import TrackerKind

log = logging.getLogger(__name__)
_LAST_SECONDS: Final = 5.0
_SENT: Final = "sent"


class Tracking:
    """Does nothing for a server without trackers."""

    def __init__(
        self,
        kinds: Sequence[TrackerKind],
        directory: Path,
        history: StepHistory,
        catalog: Catalog,
        *,
        now: Callable[[], datetime],
        last_seconds: float = _LAST_SECONDS,
        process: Callable[[TrackerKind, Path], TrackerProcess] = TrackerProcess,
    ) -> None:
        """Trackers that write files, and marks of the points that each tracker has, are below ``directory``.

        ``last_seconds``: how long ``stop`` waits for trackers to take the last points.
        """
        self._history = history
        self._last_seconds = last_seconds
        self._listening: asyncio.Task[None] | None = None
        self._feeding: list[asyncio.Task[None]] = []
        self._trackers = [process(kind, directory) for kind in kinds]
        self._feeds = [
            TrackerFeed(tracker, history, catalog, SentMarks(directory / _SENT / tracker.kind), now=now)
            for tracker in self._trackers
        ]

    def start(self) -> None:
        """Feed the trackers until ``stop``."""
        if self._feeds:
            self._listening = asyncio.create_task(self._note_points())
        self._feeding = [asyncio.create_task(feed.keep()) for feed in self._feeds]

    async def stop(self) -> None:
        """Send the last points, for a few seconds at most, and end the processes of the trackers."""
        if self._listening is not None:
            self._listening.cancel()
        await asyncio.gather(*map(self._stop, self._feeds, self._feeding, self._trackers))

    async def _stop(self, feed: TrackerFeed, feeding: asyncio.Task[None], tracker: TrackerProcess) -> None:
        feed.stop()
        try:
            async with asyncio.timeout(self._last_seconds):
                await feeding
                await feed.flush()
        except TimeoutError:
            log.warning("last points not sent, the next server sends them tracker=%s", tracker.kind)
            await tracker.close(leave_seconds=0.0)
        await tracker.close()

    async def _note_points(self) -> None:
        while True:
            with self._history.subscribe(None) as news:
                async for each in news:
                    for feed in self._feeds:
                        feed.note(each.run_id)
            if not news.has_fallen_behind:
                return  # the server stops
            for feed in self._feeds:
                await feed.note_missed()
