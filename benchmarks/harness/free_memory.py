"""Free memory: whether it is warm or cold when a contestant asks for some.

Many virtual machines hand free memory back to their host after a second or two, and touching it again is then some
thirty times slower. A contestant that writes through the page cache or allocates a new buffer pays for that, and how
much depends on what ran before it. So a run controls it:

``warm``  as on bare metal: the benchmark holds memory between the turns and frees it just before each turn.
``cold``  as a checkpoint every few minutes finds it on such a machine: a pause before each turn lets the host
          take its memory back, and a contestant that needs fresh memory pays for it.
"""

from __future__ import annotations

import gc
import mmap
import os
import time
from pathlib import Path
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

Temperature = Literal["warm", "cold"]

PAGE_BYTES = 4096
SPARED_BYTES = 6 << 30  # of the available memory, left to other programs on this machine
HAND_BACK_SECONDS = 3.0
LEAST_WARM_BYTES = 128 << 20
WARM_STATES = 2  # page cache, and a copy


class FreeMemory(Protocol):
    temperature: Temperature

    def prepare(self) -> None:
        """Just before a turn: clean up after the last contestant, and make free memory warm or cold."""

    def recover(self) -> None:
        """Just after a turn."""


class AsItIs:
    """Leaves free memory as it is: for contestants that write little, or into memory that they have already."""

    temperature: Temperature = "warm"

    def __init__(self, *, syncs: bool = False) -> None:
        """``syncs``: dirty pages are written to the disk before each turn."""
        self._syncs = syncs

    def prepare(self) -> None:
        gc.collect()
        if self._syncs:
            os.sync()

    def recover(self) -> None:
        pass


class WarmMemory:
    """Holds ``size_bytes`` between turns, so that the host cannot take them."""

    temperature: Temperature = "warm"

    def __init__(self, size_bytes: int) -> None:
        self._size_bytes = size_bytes
        self._held: NDArray[np.uint8] | None = None
        self.recover()

    def prepare(self) -> None:
        _settle()
        self._held = None

    def recover(self) -> None:
        affordable = available_memory_bytes() - SPARED_BYTES
        if affordable > PAGE_BYTES:
            self._held = touched_buffer(min(self._size_bytes, affordable))


class ColdMemory:
    """Waits before each turn until the host has taken free memory back."""

    temperature: Temperature = "cold"

    def prepare(self) -> None:
        _settle()
        time.sleep(HAND_BACK_SECONDS)

    def recover(self) -> None:
        pass


def free_memory(temperature: Temperature, state_bytes: int) -> FreeMemory:
    """What the contestants on a state of this size will find."""
    if temperature == "cold":
        return ColdMemory()
    return WarmMemory(max(LEAST_WARM_BYTES, WARM_STATES * state_bytes))


def touched_buffer(size_bytes: int) -> NDArray[np.uint8]:
    """Page-aligned memory of its own, every page of which exists."""
    memory = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE)  # as numpy does for its own large arrays
    buffer = np.frombuffer(memory, dtype=np.uint8)
    buffer[::PAGE_BYTES] = 1
    return buffer


def available_memory_bytes() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("/proc/meminfo has no MemAvailable line")


def _settle() -> None:
    gc.collect()
    os.sync()
