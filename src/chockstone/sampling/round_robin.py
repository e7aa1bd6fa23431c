"""Round robin: a queue of items by owner, from which the owners take turns.

Each owner has a queue of its own. The owners take turns, whatever the lengths of their queues. Within a queue items are
taken first in, first out.
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
        """All items, in no particular order."""
        return chain.from_iterable(self._lines.values())

    def first(self) -> T:
        """The item that ``take`` would return. There must be one."""
        return next(iter(self._lines.values()))[0]

    def add(self, owner: str, item: T) -> None:
        self._lines.setdefault(owner, deque()).append(item)

    def take(self) -> T:
        """Remove the first item of the next owner, who goes behind the other owners. There must be one."""
        owner, line = next(iter(self._lines.items()))
        item = line.popleft()
        if line:
            self._lines.move_to_end(owner)
        else:
            del self._lines[owner]
        return item

    def remove(self, owner: str, item: T) -> None:
        line = self._lines[owner]
        line.remove(item)
        if not line:
            del self._lines[owner]
