"""Connections: how many are open, and which one gives way when there are too many.

A connection is a stranger's until one of its requests had a valid credential or a valid signed URL. Strangers'
connections give way, the oldest first: those without a request in progress, then those with one, because a stranger
can keep a request in progress for as long as it likes by taking the response slowly.
"""

from __future__ import annotations

from itertools import islice
from typing import Final, Protocol

_CANDIDATES: Final = 100  # oldest strangers among which an idle one is looked for


class Connected(Protocol):
    """One open connection."""

    @property
    def is_busy(self) -> bool:
        """Whether a request is in progress."""
        ...

    def abort(self) -> None:
        """Close it now. It leaves the register later, by itself."""
        ...


class Connections:
    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._count = 0
        self._strangers: dict[Connected, None] = {}  # oldest first

    @property
    def count(self) -> int:
        return self._count

    def enter(self, connection: Connected) -> None:
        """Where there is no room, a stranger's connection is closed, which may be this one."""
        self._count += 1
        self._strangers[connection] = None
        if self._count <= self._limit:
            return
        candidates = [each for each in islice(self._strangers, _CANDIDATES) if each is not connection] or [connection]
        oldest = next((each for each in candidates if not each.is_busy), candidates[0])
        del self._strangers[oldest]  # it is asked once
        oldest.abort()

    def recognize(self, connection: Connected) -> None:
        """A request on it had a valid credential or a valid signed URL."""
        self._strangers.pop(connection, None)

    def leave(self, connection: Connected) -> None:
        self._count -= 1
        self._strangers.pop(connection, None)
