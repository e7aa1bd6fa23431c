"""The history of one run in memory: where its next point goes, its newest points, and those that are not written yet.

The live run holds it. Older points are in the file alone.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from typing import Final

from chockstone.engine.history.history_file import HistoryFile, HistoryTooNew
from chockstone.engine.history.points import EXTREMES, HistoryPoint, Measurement, Source
from chockstone.engine.history.thinning import is_thinning_due, thin

log = logging.getLogger(__name__)
MAX_NAMES: Final = 64  # series of one run
SERVER_NAMES: Final = ("loss", "loss:sum", "tokens", "seconds", "learning_rate", "grad_norm")  # always have a place
MAX_UNWRITTEN: Final = 20_000  # points, while the disk takes none
_RECENT: Final = 512  # points that are read without the file


class TooManyNames(Exception):
    """The run has as many series as it may."""


class RunHistory:
    """Used by one event loop, but for ``write``: that is called in a thread, with ``writing`` held."""

    def __init__(self, run_id: str, file: HistoryFile, *, birth: str) -> None:
        self.run_id = run_id
        self.file = file
        self.birth = birth
        self.writing = asyncio.Lock()
        self.unwritten: list[HistoryPoint] = []
        self.is_failing = False  # the last write failed
        self._next_position = 1
        self._through = 0  # sequence of the last operation that is recorded
        self._names: set[str] = {*SERVER_NAMES}
        self._recent: deque[HistoryPoint] = deque(maxlen=_RECENT)
        self._counts: Counter[Source] = Counter()  # points in the file, by source
        self._size_bytes = 0  # of the file
        self._is_new = True  # the file is not there, or is to be written anew
        self._is_synced = True  # what was written is durable
        self._is_thick = False  # the last thinning failed
        self._is_readonly = False  # a later version wrote the file

    def take(self, points: Sequence[HistoryPoint], *, size_bytes: int, is_whole: bool) -> None:
        """Continue after these points of the file. ``is_whole``: no line of the file is damaged."""
        for point in points:
            self._note(point)
        self._counts = Counter(point.source for point in points)
        self._size_bytes = size_bytes
        self._is_new = not (is_whole and size_bytes)
        if self._is_new:
            self.unwritten = list(points)
            self._counts.clear()

    def take_readonly(self) -> None:
        """The file is a later version's: points are kept in memory alone."""
        self._is_readonly = True

    @property
    def cursor(self) -> int:
        """Position of the newest point; 0: there is none."""
        return self._next_position - 1

    def recent(self, after: int) -> list[HistoryPoint] | None:
        """All points after this position, if they are in memory."""
        oldest = self._recent[0].position if self._recent else self._next_position
        if after < oldest - 1:
            return None
        return [point for point in self._recent if point.position > after]

    def in_memory(self) -> list[HistoryPoint]:
        """The newest points, written or not, in the order of their positions."""
        recent = list(self._recent)
        first = recent[0].position if recent else self._next_position
        return [*(point for point in self.unwritten if point.position < first), *recent]

    def rewind(self, next_sequence: int) -> None:
        """Operations from here on are new, although points of lost operations may have the same sequence."""
        self._through = min(self._through, next_sequence - 1)

    def add_server(self, sequence: int, measured: Measurement) -> HistoryPoint | None:
        """The new point; None if the operation is recorded already, or if it has no values."""
        if sequence <= self._through:
            return None
        self._through = sequence
        values = measured.values
        if not self._names.issuperset(values):
            values = {name: value for name, value in values.items() if name in self._names or self._adopt(name)}
        return self._add(HistoryPoint(self._next_position, sequence, measured.at, measured.step, "server", values))

    def add_client(self, measured: Iterable[Measurement]) -> list[HistoryPoint]:
        """The new points. Raises TooManyNames with nothing added."""
        measured = list(measured)
        names = self._names.union(*(each.values for each in measured))
        if len(names) > MAX_NAMES:
            raise TooManyNames
        self._names = names
        return [
            self._add(HistoryPoint(self._next_position, None, each.at, each.step, "client", each.values))
            for each in measured
        ]

    def write(self, points: Sequence[HistoryPoint], *, synced: bool) -> None:
        """Write these points, and thin the file if it has too many. Raises OSError, with all of them unwritten."""
        if self._is_readonly:
            return
        if self._is_new and points:
            self._size_bytes = self.file.replace(points, birth=self.birth)
            self._is_new = False
        elif points:
            try:
                self._size_bytes = self.file.append(points, at_bytes=self._size_bytes, synced=synced)
            except FileNotFoundError:  # it was deleted by hand
                self._size_bytes = self.file.replace(points, birth=self.birth)
                self._counts.clear()
            self._is_synced = synced
        elif synced and not self._is_synced:
            self.file.sync()
            self._is_synced = True
        self._counts.update(point.source for point in points)
        if any(is_thinning_due(count) for count in self._counts.values()):
            try:
                self._thin()
            except (OSError, HistoryTooNew) as error:  # the next write tries again
                if not self._is_thick:
                    log.warning("history not thinned run=%s error=%s; it is tried again", self.run_id, error)
                self._is_thick = True

    def _thin(self) -> None:
        kept = thin(self.file.read().points)
        self._size_bytes = self.file.replace(kept, birth=self.birth)
        self._counts = Counter(point.source for point in kept)
        self._is_synced, self._is_thick = True, False

    def put_back(self, points: Sequence[HistoryPoint]) -> None:
        """These could not be written. The oldest are given up when there are too many."""
        self.unwritten = [*points, *self.unwritten][-MAX_UNWRITTEN:]

    def _add(self, point: HistoryPoint) -> HistoryPoint:
        self._next_position += 1
        self._recent.append(point)
        if not self._is_readonly:
            self.unwritten.append(point)
        return point

    def _adopt(self, name: str) -> bool:
        """Whether the run may have one more series."""
        if len(self._names) >= MAX_NAMES:
            return False
        self._names.add(name)
        return True

    def _note(self, point: HistoryPoint) -> None:
        self._next_position = point.position + 1
        self._names.update(name for name in point.values if name not in EXTREMES)
        self._recent.append(point)
        if point.sequence is not None:
            self._through = point.sequence
