"""Cost: how much was asked of a store, counted where it is asked."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from chockstone.checkpoints.bucket import repeats
from chockstone.checkpoints.store import Source


class Cost:
    """Requests, those that were sent again, bytes that came back, and the time it all took. Thread-safe."""

    def __init__(self) -> None:
        self.requests = 0
        self.retries = 0
        self.bytes = 0
        self.seconds = 0.0
        self._lock = threading.Lock()

    @contextmanager
    def request(self) -> Iterator[None]:
        started, before = time.perf_counter(), repeats.count
        try:
            yield
        finally:
            self.add(1, 0, time.perf_counter() - started, retries=repeats.count - before)

    def add(self, requests: int, size: int, seconds: float, *, retries: int = 0) -> None:
        with self._lock:
            self.requests += requests
            self.retries += retries
            self.bytes += size
            self.seconds += seconds


class MeteredSource:
    """A source whose reads are counted; those of a file are no requests, but bytes all the same."""

    def __init__(self, source: Source, cost: Cost, *, is_remote: bool) -> None:
        self._source = source
        self._cost = cost
        self._is_remote = is_remote

    @property
    def size(self) -> int:
        return self._source.size

    @property
    def run_bytes(self) -> int:
        return self._source.run_bytes

    @property
    def readers(self) -> int:
        return self._source.readers

    def read_into(self, offset: int, target: memoryview) -> None:
        started = time.perf_counter()
        try:
            self._source.read_into(offset, target)
        finally:
            requests = max(1, -(-len(target) // self.run_bytes)) if self._is_remote else 0
            self._cost.add(requests, len(target), time.perf_counter() - started)

    def map(self) -> memoryview | None:
        memory = self._source.map()
        if memory is not None:
            self._cost.add(0, len(memory), 0.0)
        return memory

    def descriptor(self) -> int | None:
        return self._source.descriptor()

    def close(self) -> None:
        self._source.close()
