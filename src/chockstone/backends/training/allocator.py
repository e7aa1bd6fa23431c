"""The allocator: whether freed memory goes back to the system.

glibc keeps blocks of up to 32 MiB that were freed. Tensors are aligned blocks of many sizes, so the gaps that they
leave are often not used again: a step with long sequences grew to five times what it needed, and kept that afterwards.
Blocks that are mapped by themselves leave no gaps. The kernel zeroes their pages each time, which takes a sixth to a
fifth of a step. So this is for the passes that decide how much memory a worker needs.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

POSITIONS: Final = 2048  # of a micro-batch that is large
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # parameters of mallopt
_MAPPED_BYTES: Final = 1 << 20  # blocks of this size are mapped by themselves
_USUAL_BYTES: Final = 32 << 20  # what glibc raises its own limit to, when large blocks are freed


@contextmanager
def returning_memory(is_wanted: bool) -> Iterator[None]:
    """Inside, freed tensors go back to the system. Nothing changes where the C library is not glibc."""
    mallopt = _mallopt()
    if not is_wanted or mallopt is None:
        yield
        return
    mallopt(_TRIM_THRESHOLD, 2 * _USUAL_BYTES)  # as glibc itself has it then; a call of mallopt resets it
    mallopt(_MMAP_THRESHOLD, _MAPPED_BYTES)
    try:
        yield
    finally:
        mallopt(_MMAP_THRESHOLD, _USUAL_BYTES)


@functools.cache
def _mallopt() -> Callable[[int, int], int] | None:
    library = ctypes.CDLL(None)
    if not hasattr(library, "gnu_get_libc_version"):
        return None
    found: Callable[[int, int], int] = library.mallopt
    return found
