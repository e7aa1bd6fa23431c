"""Recent timings: when the last pieces of work waited, began and ended, within bounds, in memory only."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

PER_KEY: Final = 1000
KEYS: Final = 128


@dataclass(frozen=True, slots=True)
class WorkTiming:
    """One piece of work. Times are seconds since 1970."""

    name: str
    queued_at: float
    begun_at: float
    ended_at: float
    sequence: int = 0  # of its record in a journal; 0: it has none
    details: Mapping[str, str | int | float] = field(default_factory=dict)


class RecentTimings:
    """The newest timings of each of the keys that were used last."""

    def __init__(self, *, per_key: int = PER_KEY, keys: int = KEYS) -> None:
        self._per_key = per_key
        self._keys = keys
        self._by_key: OrderedDict[str, deque[WorkTiming]] = OrderedDict()

    def add(self, key: str, timing: WorkTiming) -> None:
        if (kept := self._by_key.get(key)) is None:
            kept = self._by_key[key] = deque(maxlen=self._per_key)
            if len(self._by_key) > self._keys:
                self._by_key.popitem(last=False)
        else:
            self._by_key.move_to_end(key)
        kept.append(timing)

    def of(self, key: str) -> list[WorkTiming]:
        """Oldest first."""
        return list(self._by_key.get(key, ()))
