"""Shares: how much of a queue each user may fill, so that no user fills it for the others.

A user may hold at most three times what is left free. One user alone fills three quarters of the queue; two users who
both want all of it get three sevenths each; and some room is always left for a user who comes later. A user who holds
nothing is refused only when the queue is full.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

_SHARE: Final = 3  # what a user may hold, in multiples of what is left free


class QueueShares:
    """Amounts, of requests or of bytes, out of a limit for all users together. It counts and never waits."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._held: Counter[str] = Counter()
        self.total = 0

    def held_by(self, owner: str) -> int:
        return self._held[owner]

    def has_room(self, owner: str, amount: int) -> bool:
        if not amount:
            return True
        left = self._limit - self.total - amount
        if left < 0:
            return False
        held = self._held[owner]
        return not held or held + amount <= _SHARE * left

    def add(self, owner: str, amount: int) -> None:
        """Whether or not there is room: what was acknowledged before a restart is taken, too."""
        self.total += amount
        self._held[owner] += amount

    def remove(self, owner: str, amount: int) -> None:
        self.total -= amount
        self._held[owner] -= amount
        if not self._held[owner]:
            del self._held[owner]
