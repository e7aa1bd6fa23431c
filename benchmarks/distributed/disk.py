"""The bare disk: writes and reads as many bytes past the page cache, and does nothing else.

That is about the least that a load takes, and that a save takes after its copy in memory.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable
from pathlib import Path

from chockstone.checkpoints.format.tar import PAGE

PIECE_BYTES = 1024**2  # from 256 KiB to 32 MiB, and with more threads, it was slower


def write_part(path: Path, start: int, end: int) -> None:
    """Write these bytes of an existing file and fsync it."""
    descriptor = os.open(path, os.O_WRONLY | os.O_DIRECT)
    try:
        _by_pieces(start, end, lambda memory, offset: os.pwrite(descriptor, memory, offset))
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_part(path: Path, start: int, end: int) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECT)
    try:
        _by_pieces(start, end, lambda memory, offset: os.preadv(descriptor, [memory], offset))
    finally:
        os.close(descriptor)


def make_room(path: Path, size: int) -> None:
    with open(path, "xb") as file:
        os.posix_fallocate(file.fileno(), 0, size)


def part_of(size: int, rank: int, ranks: int) -> tuple[int, int]:
    """Whole pages; the bytes that are left over at the end belong to no rank."""
    pages = size // PAGE // ranks
    return rank * pages * PAGE, (rank + 1) * pages * PAGE


def _by_pieces(start: int, end: int, move: Callable[[memoryview, int], int]) -> None:
    with mmap.mmap(-1, PIECE_BYTES) as buffer, memoryview(buffer) as memory:
        memory[:] = b"\x55" * PIECE_BYTES
        for offset in range(start, end, PIECE_BYTES):
            length = min(PIECE_BYTES, end - offset)
            with memory[:length] as piece:
                if move(piece, offset) != length:
                    raise OSError(f"the disk took or gave less than {length} bytes")
