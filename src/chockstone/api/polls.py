"""Polls: long polls that wait for a result, until a timeout or until the server shuts down."""

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
        """The result of ``news``; None after the timeout, or when the server shuts down before."""
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
        """End all polls, now and from now on: clients poll again, and reach the next server."""
        self._has_ended = True
        now = asyncio.get_running_loop().time()
        for scope in self._held:
            scope.reschedule(now)
