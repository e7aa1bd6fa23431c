"""Round robin: items of several owners, taken one owner after the other.

Each owner has a FIFO queue of its own. Owners take turns, however long their queues are.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator
from itertools import chain
from typing import Generic, TypeVar

T = TypeVar("T")


class RoundRobin(Generic[T]):
    def __init__(self) -> None:
        self._queues: OrderedDict[str, deque[T]] = OrderedDict()  # no queue is empty; the first owner is next

    def __bool__(self) -> bool:
        return bool(self._queues)

    def __iter__(self) -> Iterator[T]:
        """All items, in no promised order."""
        return chain.from_iterable(self._queues.values())

    def first(self) -> T:
        """What ``take`` would return. There must be an item."""
        return next(iter(self._queues.values()))[0]

    def add(self, owner: str, item: T) -> None:
        self._queues.setdefault(owner, deque()).append(item)

    def take(self) -> T:
        """The first item of the next owner, who goes behind the other owners. There must be an item."""
        owner, queue = next(iter(self._queues.items()))
        item = queue.popleft()
        if queue:
            self._queues.move_to_end(owner)
        else:
            del self._queues[owner]
        return item

    def remove(self, owner: str, item: T) -> None:
        queue = self._queues[owner]
        queue.remove(item)
        if not queue:
            del self._queues[owner]
