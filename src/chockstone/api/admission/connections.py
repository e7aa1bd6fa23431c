"""Connections: how many are open, and which one gives way when there are too many.

A connection is a stranger's until one of its requests had a valid credential. Strangers' connections without
a request in progress give way first, the oldest first.
"""

from __future__ import annotations

from typing import Protocol


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
        """Where there is no room, an idle stranger's connection is closed, or else this one."""
        self._count += 1
        self._strangers[connection] = None
        if self._count <= self._limit:
            return
        oldest = next((each for each in self._strangers if not each.is_busy), connection)
        del self._strangers[oldest]  # it is asked once
        oldest.abort()

    def recognize(self, connection: Connected) -> None:
        """A request on it had a valid credential."""
        self._strangers.pop(connection, None)

    def leave(self, connection: Connected) -> None:
        self._count -= 1
        self._strangers.pop(connection, None)
