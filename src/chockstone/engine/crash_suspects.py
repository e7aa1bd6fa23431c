"""Suspects: requests that were under way when the worker died, and take turns until one of them has proved it.

Whoever dies again while it ran by itself did it; whoever only stood near is cleared by the next run.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field


@dataclass(slots=True)
class _Group:
    door: asyncio.Lock = field(default_factory=asyncio.Lock)
    members: int = 0
    has_turn: bool = False


class CrashSuspects:
    """One for everything that one worker is asked. Nobody may enter again from within."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._groups: dict[str, _Group] = {}

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        """A turn during which no other suspect runs."""
        async with self._turn:
            yield

    @asynccontextmanager
    async def together(self, name: str) -> AsyncIterator[None]:
        """A turn that those of this name share: for many at once, each of which is suspected only a little."""
        group = self._groups.setdefault(name, _Group())
        group.members += 1
        try:
            async with group.door:
                if not group.has_turn:
                    await self._turn.acquire()
                    group.has_turn = True
            yield
        finally:
            group.members -= 1
            if not group.members:
                del self._groups[name]
                if group.has_turn:
                    self._turn.release()
