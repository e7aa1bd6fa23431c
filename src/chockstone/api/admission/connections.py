"""Connections: how many are open, and which one is closed when there are too many.

A connection is anonymous until one of its requests had a valid credential or a valid signed URL. Anonymous
connections are closed, the oldest first: those without a request in progress, then those with one, because a client
can keep a request in progress for as long as it likes by reading the response slowly.
"""

from __future__ import annotations

from itertools import islice
from typing import Final, Protocol

_CANDIDATES: Final = 100  # oldest anonymous connections among which an idle one is sought


class Connected(Protocol):
    """One open connection."""

    @property
    def is_busy(self) -> bool:
        """Whether a request is in progress."""
        ...

    def abort(self) -> None:
        """Close the connection now. It calls ``leave`` later."""
        ...


class Connections:
    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._count = 0
        self._anonymous: dict[Connected, None] = {}  # oldest first

    @property
    def count(self) -> int:
        return self._count

    def enter(self, connection: Connected) -> None:
        """Above the limit, an anonymous connection is closed, which may be this one."""
        self._count += 1
        self._anonymous[connection] = None
        if self._count <= self._limit:
            return
        candidates = [each for each in islice(self._anonymous, _CANDIDATES) if each is not connection] or [connection]
        oldest = next((each for each in candidates if not each.is_busy), candidates[0])
        del self._anonymous[oldest]  # abort it once
        oldest.abort()

    def recognize(self, connection: Connected) -> None:
        """A request on the connection had a valid credential or a valid signed URL."""
        self._anonymous.pop(connection, None)

    def leave(self, connection: Connected) -> None:
        self._count -= 1
        self._anonymous.pop(connection, None)
