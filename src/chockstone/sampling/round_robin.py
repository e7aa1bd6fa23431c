"""Rotas: things to do, taken in turn between those who asked for them.

Each party has its own line. The parties take turns, whatever the length of their lines, and within a line the first
come is the first taken.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator
from itertools import chain
from typing import Generic, TypeVar

T = TypeVar("T")


class RoundRobin(Generic[T]):
    def __init__(self) -> None:
        self._lines: OrderedDict[str, deque[T]] = OrderedDict()  # none is empty; the first is next

    def __bool__(self) -> bool:
        return bool(self._lines)

    def __iter__(self) -> Iterator[T]:
        """All of them, in no promised order."""
        return chain.from_iterable(self._lines.values())

    def first(self) -> T:
        """What ``take`` would return; there must be one."""
        return next(iter(self._lines.values()))[0]

    def add(self, party: str, item: T) -> None:
        self._lines.setdefault(party, deque()).append(item)

    def take(self) -> T:
        """The next party's first, which goes behind the other parties; there must be one."""
        party, line = next(iter(self._lines.items()))
        item = line.popleft()
        if line:
            self._lines.move_to_end(party)
        else:
            del self._lines[party]
        return item

    def remove(self, party: str, item: T) -> None:
        line = self._lines[party]
        line.remove(item)
        if not line:
            del self._lines[party]
