"""The collector: metrics from any task and any thread, each value returned exactly once.

Only the collector holds its dictionary. A task that kept a reference to a plain dictionary across an ``await`` could
write into one that was flushed meanwhile; callers of the collector only call ``add``.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Measure:
    """Statistics of the values of one name between two drains; ``count`` is at least 1."""

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
    """Use it from any task and any thread. Calls block only for the update of a dictionary."""

    def __init__(self, *, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._measures: dict[str, Measure] = {}

    def add(self, name: str, value: float) -> None:
        """Add one value to the measure ``name``."""
        with self._lock:
            known = self._measures.get(name)
            self._measures[name] = known.with_value(value) if known else Measure(1, value, value, value, value)

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Add the seconds that the block takes, also when it raises or is cancelled.

        The value is added when the block ends, so a drain does not contain blocks that are still running.
        """
        start = self._clock()
        try:
            yield
        finally:
            self.add(name, self._clock() - start)

    def drain(self) -> dict[str, Measure]:
        """Return all measures since the last drain. Each value is in exactly one drain. The caller owns the result."""
        with self._lock:
            drained, self._measures = self._measures, {}
        return drained
