"""Out of memory: recognises the errors of allocators, and says which datums did not fit."""

from __future__ import annotations

import gc
from typing import Final

import torch

_WORDS: Final = (  # of allocators that raise a plain RuntimeError
    "DefaultCPUAllocator: can't allocate memory",
    "DefaultCPUAllocator: not enough memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "std::bad_alloc",
)


class PassOutOfMemory(Exception):
    """A pass ran out of memory. The run is as it was before the pass."""

    def __init__(self, datums: tuple[int, ...], positions: int) -> None:
        """``datums``: of the micro-batch, by index, which has so many ``positions``. Empty: no micro-batch was run."""
        super().__init__(f"out of memory in a micro-batch of {len(datums)} datums with {positions} tokens")
        self.datums = datums
        self.positions = positions


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an allocator raised it: of CUDA, of the CPU or of Python."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _WORDS)


def release_memory(device: torch.device) -> None:
    """Give back what nothing refers to any more. Call it outside of the ``except`` block: the error refers to much."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
