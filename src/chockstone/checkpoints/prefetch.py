"""Prefetch: the first bytes of an archive's body, read while it is still being decided where they go.

Planning a restore is Python and holds the interpreter; one long read per thread needs it only at
its end, so both go on at once. The memory is kept for the next restore.
"""

from __future__ import annotations

import threading
from typing import Final, Protocol

from chockstone.checkpoints.errors import CheckpointError
from chockstone.checkpoints.memory import Bytes, allocate
from chockstone.checkpoints.tar import PAGE, round_up

PREFETCH_BYTES: Final = 64 * 1024**2
THREADS: Final = 2

_spare: list[Bytes] = []  # one at most


class Readable(Protocol):
    def read_into(self, offset: int, target: memoryview) -> None: ...


class Prefetch:
    """Reads ``[start, end)``, or the first part of it, in the background. ``close`` before forgetting it."""

    def __init__(self, source: Readable, start: int, end: int) -> None:
        self._source = source
        self._start = start
        self._end = min(end, start + PREFETCH_BYTES)
        try:
            self._memory = _spare.pop()
        except IndexError:
            self._memory = allocate(PREFETCH_BYTES)
        share = max(PAGE, round_up((self._end - start) // THREADS, PAGE))
        self._threads = [
            threading.Thread(target=self._read, args=(place, min(place + share, self._end)), daemon=True)
            for place in range(start, self._end, share)
        ]
        self._failed = False
        for thread in self._threads:
            thread.start()

    def view(self, start: int, end: int) -> Bytes | None:
        """Those bytes once they are there; None when they are not among the prefetched."""
        if not (self._start <= start and end <= self._end):
            return None
        for thread in self._threads:
            thread.join()
        return None if self._failed else self._memory[start - self._start : end - self._start]

    def close(self) -> None:
        for thread in self._threads:
            thread.join()
        if not _spare:
            _spare.append(self._memory)

    def _read(self, start: int, end: int) -> None:
        try:
            self._source.read_into(start, self._memory[start - self._start : end - self._start].data)
        except CheckpointError:
            self._failed = True  # whoever needs the bytes reads them again, and gets the error
