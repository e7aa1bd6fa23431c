"""Scratch: memory that bytes of several ranks are put together in, kept from save to save.

A save needs some of it again and again, for a moment each time. Fresh memory would cost more than what is done in it.
"""

from __future__ import annotations

import threading
from typing import Final

from chockstone.checkpoints.format.host_memory import Bytes, allocate

_LEAST_BYTES: Final = 64 * 1024


class ScratchMemory:
    """For several threads. It holds what was lent out at the same time, and no more."""

    def __init__(self) -> None:
        self._free: dict[int, list[Bytes]] = {}  # by size
        self._lock = threading.Lock()

    def lend(self, size: int) -> Bytes:
        """At least so many bytes, beginning on a page, with anything in them."""
        capacity = max(_LEAST_BYTES, 1 << (size - 1).bit_length())
        with self._lock:
            free = self._free.get(capacity)
            if free:
                return free.pop()
        return allocate(capacity)

    def take_back(self, memory: Bytes) -> None:
        """What was lent, whole; nobody looks at it any more."""
        with self._lock:
            self._free.setdefault(len(memory), []).append(memory)
