"""Polls: requests that are held until there is something to say, or until the server is about to end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

T = TypeVar("T")


class Polls:
    def __init__(self) -> None:
        self._held: set[asyncio.Timeout] = set()
        self._has_ended = False

    async def hold(self, news: Awaitable[T], *, timeout_seconds: float) -> T | None:
        """What ``news`` comes to; None when it does not in time, or when the server ends before."""
        try:
            async with asyncio.timeout(0 if self._has_ended else timeout_seconds) as scope:
                self._held.add(scope)
                return await news
        except TimeoutError:
            if not scope.expired():
                raise
            return None
        finally:
            self._held.discard(scope)

    def end(self) -> None:
        """Answer everyone who waits, now and from now on: clients ask again, and meet the next server."""
        self._has_ended = True
        now = asyncio.get_running_loop().time()
        for scope in self._held:
            scope.reschedule(now)
