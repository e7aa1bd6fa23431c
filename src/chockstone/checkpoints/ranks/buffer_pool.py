"""The buffer pool: memory in which bytes of several ranks are put together, reused from save to save.

A save needs a buffer many times, for a moment each. Fresh memory would cost more than the copy into it.
"""

from __future__ import annotations

import threading
from typing import Final

from chockstone.checkpoints.format.host_memory import Bytes, allocate

_LEAST_BYTES: Final = 64 * 1024


class BufferPool:
    """Thread-safe. It keeps as many buffers as were in use at the same time."""

    def __init__(self) -> None:
        self._free: dict[int, list[Bytes]] = {}  # by size
        self._lock = threading.Lock()

    def acquire(self, size: int) -> Bytes:
        """A page-aligned buffer of at least ``size`` bytes, with undefined content."""
        capacity = max(_LEAST_BYTES, 1 << (size - 1).bit_length())
        with self._lock:
            free = self._free.get(capacity)
            if free:
                return free.pop()
        return allocate(capacity)

    def release(self, memory: Bytes) -> None:
        """Give back a whole buffer of ``acquire``. Nothing may refer to it any more."""
        with self._lock:
            self._free.setdefault(len(memory), []).append(memory)
