"""Pace: a save that takes its time, so that what runs beside it keeps the disk and the processors.

Writing as fast as a disk takes it costs whoever computes on the same machine, in cores and in memory
bandwidth, whatever priority the writer has. A pace spreads the same bytes over more time, and only for as
long as nobody waits for them.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from typing import Final

from chockstone.checkpoints.runtime.flag import Flag

_PAUSES_PER_SECOND: Final = 25  # many small pauses disturb less than few long ones


class Pace:
    """At most so many bytes per second from now on, until ``hurry`` is set. For any number of threads."""

    def __init__(
        self,
        bytes_per_second: float = math.inf,
        hurry: Flag | None = None,
        *,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._bytes_per_second = bytes_per_second
        self._hurry = hurry or Flag()
        self._now = now
        self._lock = threading.Lock()
        self._free_at = now()

    def step_bytes(self, most: int) -> int:
        """How much to write at once: little enough for even steps."""
        return max(1, int(min(most, self._bytes_per_second / _PAUSES_PER_SECOND)))

    def wait(self, size: int) -> None:
        """Until it is time to write so many bytes."""
        with self._lock:
            at = max(self._free_at, self._now())
            self._free_at = at + size / self._bytes_per_second
        self._hurry.wait(at - self._now())
