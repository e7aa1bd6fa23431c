"""Limits: what the disk and the memory of this machine could do at best with the same number of bytes.

Each limit moves the bytes of a state and nothing else: no format, no digest, no name to commit. Both buffers
are page-aligned and already touched. O_DIRECT is tried with several chunk sizes and numbers of threads, and
the best median counts.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from benchmarks.checkpoints.states import State
from benchmarks.harness.free_memory import touched_buffer

ALIGNMENT = 4096
MEBIBYTE = 1 << 20


@dataclass(frozen=True, slots=True)
class Variant:
    threads: int
    chunk_bytes: int

    @property
    def title(self) -> str:
        return f"{self.threads} thread{'s' * (self.threads > 1)}, {self.chunk_bytes // MEBIBYTE} MiB"


VARIANTS = tuple(Variant(threads, chunk * MEBIBYTE) for threads in (1, 2) for chunk in (8, 32))


class Limits:
    """Two buffers as large as one state, rounded up to whole pages."""

    def __init__(self, state: State) -> None:
        self.size_bytes = -(-state.size_bytes // ALIGNMENT) * ALIGNMENT
        self._source = touched_buffer(self.size_bytes)
        self._destination = touched_buffer(self.size_bytes)
        offset = 0
        for tensor in state.flat().values():
            raw = tensor.reshape(-1).view(torch.uint8).numpy()
            self._source[offset : offset + raw.size] = raw
            offset += raw.size

    def copy(self) -> None:
        np.copyto(self._destination, self._source)

    def write(self, path: Path, variant: Variant) -> None:
        """Write the state to a preallocated file past the page cache, and fsync it."""
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_DIRECT, 0o644)
        view = self._source.data
        try:
            os.posix_fallocate(descriptor, 0, self.size_bytes)
            self._in_chunks(variant, lambda at, end: os.pwrite(descriptor, view[at:end], at))
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def read(self, path: Path, variant: Variant) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECT)
        view = self._destination.data
        try:
            self._in_chunks(variant, lambda at, end: os.preadv(descriptor, [view[at:end]], at))
        finally:
            os.close(descriptor)

    def _in_chunks(self, variant: Variant, move: Callable[[int, int], int]) -> None:
        def work(worker: int) -> None:
            stride = variant.threads * variant.chunk_bytes
            for offset in range(worker * variant.chunk_bytes, self.size_bytes, stride):
                end = min(offset + variant.chunk_bytes, self.size_bytes)
                while offset < end:
                    offset += move(offset, end)

        if variant.threads == 1:
            work(0)
            return
        with ThreadPoolExecutor(variant.threads) as pool:
            list(pool.map(work, range(variant.threads)))
