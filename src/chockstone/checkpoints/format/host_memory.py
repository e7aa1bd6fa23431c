"""Host memory: page-aligned buffers for snapshots, headers and direct reads, and copies between addresses."""

from __future__ import annotations

import ctypes
import mmap
import sys
from contextlib import suppress
from typing import Any, Final

import numpy as np

from chockstone.checkpoints.format.tar import PAGE, round_up

Bytes = np.ndarray[Any, np.dtype[np.uint8]]


def allocate(size: int) -> Bytes:
    """Zeroed, page-aligned memory of at least ``size`` bytes, rounded up to whole pages."""
    # Private: a forked child must not share it, and huge pages are for private memory only.
    block = mmap.mmap(-1, max(round_up(size, PAGE), PAGE), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if size >= 4 * 1024**2 and hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a kernel without huge pages; only slower
            block.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(block, dtype=np.uint8)


def address_of_memory(memory: Bytes) -> int:
    """Valid as long as ``memory`` is referred to."""
    return int(memory.__array_interface__["data"][0])


def move(target: int, source: int, size: int) -> None:
    """Copy bytes between addresses that the caller keeps valid. Other threads run meanwhile if the copy is long."""
    (_move_apart if size >= LONG_BYTES else _move_at_once)(target, source, size)


# A short copy takes less time than to give up the interpreter lock and to get it back, which takes up to 5 ms beside
# a thread that computes.
LONG_BYTES: Final = 64 * 1024
_move_apart: Final = ctypes.memmove
_move_at_once: Final = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)(
    ctypes.cast(ctypes.memmove, ctypes.c_void_p).value or 0
)


class HostBuffer:
    """Memory that one snapshot at a time lives in, kept from save to save.

    It grows when a state does and never shrinks: touching fresh memory costs more than copying.
    ``generation`` changes whenever earlier views stop being valid.
    """

    def __init__(self) -> None:
        self._memory: Bytes | None = None
        self.generation = 0

    def reserve(self, size: int) -> Bytes:
        if self._memory is None or len(self._memory) < size:
            self._memory = None  # free the old one first: never two at once
            self._memory = _allocate_pinned(size) if _has_cuda() else allocate(size)
            self.generation += 1
        return self._memory


def _has_cuda() -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and bool(torch.cuda.is_available())


def _allocate_pinned(size: int) -> Bytes:
    """Page-locked memory, which CUDA copies into at full speed. Not run on machines without CUDA."""
    import torch

    pinned = torch.empty(round_up(size, PAGE), dtype=torch.uint8, pin_memory=True)
    return pinned.numpy()  # keeps the tensor alive
