"""Count the requests, bytes and time that places cost."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from chockstone.checkpoints.stores.bucket import traffic
from chockstone.checkpoints.stores.store import ArchiveSource


@dataclass(frozen=True, slots=True)
class CostSnapshot:
    """A cost at one moment, or the difference between two."""

    requests: int = 0  # including retries
    retries: int = 0
    bytes: int = 0
    seconds: float = 0.0

    def __sub__(self, before: CostSnapshot) -> CostSnapshot:
        return CostSnapshot(
            self.requests - before.requests,
            self.retries - before.retries,
            self.bytes - before.bytes,
            self.seconds - before.seconds,
        )


class Cost:
    """Counts requests, retries, received bytes and seconds. Thread-safe."""

    def __init__(self, total: Cost | None = None) -> None:
        """``total``: a second counter that everything is added to."""
        self._spent = CostSnapshot()
        self._total = total
        self._lock = threading.Lock()

    @property
    def spent(self) -> CostSnapshot:
        return self._spent

    @property
    def requests(self) -> int:
        return self._spent.requests

    @contextmanager
    def request(self) -> Iterator[None]:
        """Count the requests that this thread sends in the block, or one if the store does not count them."""
        started, sent, repeated = time.perf_counter(), traffic.sent, traffic.repeated
        try:
            yield
        finally:
            seconds, requests = time.perf_counter() - started, max(1, traffic.sent - sent)
            self.add(requests, 0, seconds, retries=traffic.repeated - repeated)

    def add(self, requests: int, size: int, seconds: float, *, retries: int = 0) -> None:
        with self._lock:
            before = self._spent
            self._spent = CostSnapshot(
                before.requests + requests, before.retries + retries, before.bytes + size, before.seconds + seconds
            )
        if self._total is not None:
            self._total.add(requests, size, seconds, retries=retries)


class MeteredSource:
    """A source whose reads are counted. Reads of a file count as bytes, not as requests."""

    def __init__(self, source: ArchiveSource, cost: Cost) -> None:
        self._source = source
        self._cost = cost

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
        """Several small reads may share one request, and one large read may take several."""
        started, sent, repeated = time.perf_counter(), traffic.sent, traffic.repeated
        try:
            self._source.read_into(offset, target)
        finally:
            seconds, retries = time.perf_counter() - started, traffic.repeated - repeated
            self._cost.add(traffic.sent - sent, len(target), seconds, retries=retries)

    def map(self) -> memoryview | None:
        memory = self._source.map()
        if memory is not None:
            self._cost.add(0, len(memory), 0.0)
        return memory

    def descriptor(self) -> int | None:
        return self._source.descriptor()

    def close(self) -> None:
        self._source.close()
