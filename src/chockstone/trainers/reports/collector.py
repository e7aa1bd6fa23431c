"""The collector: numbers from any task and any thread, handed over once each.

Nobody but the collector ever holds the dictionary behind it. A task that kept a reference to one across an ``await``
would write into what another has flushed meanwhile; here there is nothing to keep, only ``add``.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Measure:
    """All values of one name between two drains; never of none."""

    count: int
    total: float
    least: float
    most: float
    last: float

    @property
    def mean(self) -> float:
        return self.total / self.count

    def with_value(self, value: float) -> Measure:
        return Measure(self.count + 1, self.total + value, min(self.least, value), max(self.most, value), value)


class Collector:
    """May be used from any task and any thread; no call waits for more than a dictionary to change."""

    def __init__(self, *, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._measures: dict[str, Measure] = {}

    def add(self, name: str, value: float) -> None:
        with self._lock:
            known = self._measures.get(name)
            self._measures[name] = known.with_value(value) if known else Measure(1, value, value, value, value)

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Add the seconds that the block takes, also when it raises or is cancelled.

        They belong to the drain after its end: a block that is still running is in none.
        """
        start = self._clock()
        try:
            yield
        finally:
            self.add(name, self._clock() - start)

    def drain(self) -> dict[str, Measure]:
        """All that was added since the last drain. Each value is in exactly one, and the dictionary is the caller's."""
        with self._lock:
            drained, self._measures = self._measures, {}
        return drained
