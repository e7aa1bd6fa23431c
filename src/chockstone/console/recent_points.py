"""Recent points: the newest points of a run's history, read further only when the run has trained further."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Final

from chockstone.engine.history.points import HistoryPoint
from chockstone.engine.history.step_history import StepHistory

KEPT: Final = 200  # of each run
_MOST_RUNS: Final = 128
_PAGE: Final = 20_000  # more than a history has


@dataclass(slots=True)
class _Recent:
    seen: Hashable = None  # what the run was when the history was read last
    cursor: int = 0
    points: deque[HistoryPoint] = field(default_factory=lambda: deque(maxlen=KEPT))


class RecentPoints:
    def __init__(self, history: StepHistory) -> None:
        self._history = history
        self._kept: dict[str, _Recent] = {}

    async def of(self, run_id: str, *, seen: Hashable) -> Sequence[HistoryPoint]:
        """Oldest first. ``seen``: differs when the run may have new points."""
        kept = self._kept.pop(run_id, None) or _Recent()
        self._kept[run_id] = kept  # the newest last
        if len(self._kept) > _MOST_RUNS:
            del self._kept[next(iter(self._kept))]
        if kept.seen != seen or not kept.cursor:
            page = await self._history.read(run_id, after=kept.cursor, limit=_PAGE)
            kept.points.extend(point for point in page.points if point.position > kept.cursor)
            kept.cursor, kept.seen = max(kept.cursor, page.cursor), seen
        return list(kept.points)
