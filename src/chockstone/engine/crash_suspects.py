"""Crash suspects: requests that were in progress when the worker died. They run one at a time from then on.

If the worker dies again, the request that ran alone is the cause. A request that succeeds is cleared.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field


@dataclass(slots=True)
class _Group:
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    members: int = 0
    has_turn: bool = False


class CrashSuspects:
    """One for all requests to one worker. Not reentrant."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._groups: dict[str, _Group] = {}

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        """Inside, no other suspect runs."""
        async with self._turn:
            yield

    @asynccontextmanager
    async def together(self, name: str) -> AsyncIterator[None]:
        """Inside, only suspects of this name run: for many requests at once, each of which is an unlikely cause."""
        group = self._groups.setdefault(name, _Group())
        group.members += 1
        try:
            async with group.lock:
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
