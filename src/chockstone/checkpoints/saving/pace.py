"""Pace: a rate limit for writes in the background.

Writing as fast as the disk allows slows down the training on the same machine, in cores and in memory bandwidth,
whatever priority the writer has. A pace spreads the same bytes over more time while no caller waits for the save.
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
    """Limits writes to ``bytes_per_second`` from now on, until ``hurry`` is set. Thread-safe."""

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
        """How many bytes to write at once for an even rate, ``most`` at most."""
        return max(1, int(min(most, self._bytes_per_second / _PAUSES_PER_SECOND)))

    def wait(self, size: int) -> None:
        """Return when ``size`` bytes may be written."""
        with self._lock:
            at = max(self._free_at, self._now())
            self._free_at = at + size / self._bytes_per_second
        self._hurry.wait(at - self._now())
