"""Fair turns: one piece of work at a time, and those who wait for theirs take turns.

Each owner has a queue, and owners take turns. So an owner waits for at most one request of each other owner.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque


class FairTurns:
    """For one event loop."""

    def __init__(self) -> None:
        self._is_taken = False
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()  # by owner, the next one first
        self._asked: dict[str, int] = {}  # by owner: those that wait, and the one that has its turn

    @property
    def total(self) -> int:
        """How many wait or have their turn."""
        return sum(self._asked.values())

    def has_room(self, owner: str, *, most: int) -> bool:
        """Whether the owner may wait once more. When ``most`` wait, owners with less than their share still may."""
        if self.total < most:
            return True
        held = self._asked.get(owner, 0)
        return held < most // len({*self._asked, owner})

    async def take(self, owner: str) -> None:
        """Wait for a turn of the owner. On return the caller has it, and calls ``give_back`` once."""
        self._asked[owner] = self._asked.get(owner, 0) + 1
        if not self._is_taken:
            self._is_taken = True
            return
        mine = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(owner, deque()).append(mine)
        try:
            await mine
        except asyncio.CancelledError:
            if mine.cancelled():
                self._leave(owner, mine)
            else:  # it was given the turn a moment ago
                self.give_back(owner)
            raise

    def give_back(self, owner: str) -> None:
        """The next owner has its turn."""
        self._forget(owner)
        while self._waiting:
            other, queue = self._waiting.popitem(last=False)
            found = queue.popleft()
            if queue:
                self._waiting[other] = queue  # behind all others
            if not found.done():  # else it was cancelled a moment ago
                found.set_result(None)
                return
        self._is_taken = False

    def _leave(self, owner: str, mine: asyncio.Future[None]) -> None:
        self._forget(owner)
        if (queue := self._waiting.get(owner)) is not None and mine in queue:
            queue.remove(mine)
            if not queue:
                del self._waiting[owner]

    def _forget(self, owner: str) -> None:
        self._asked[owner] -= 1
        if not self._asked[owner]:
            del self._asked[owner]
