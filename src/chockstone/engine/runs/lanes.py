"""Lanes: the order in which one run's operations may run.

A lane runs the turns of a single run in the order they were added, one at a time. Each runs with the context variables
that were set when it was added, so its log lines and spans belong to the request that asked for it. A lane knows
nothing of tensors, databases, journals or HTTP.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from contextvars import Context, copy_context

Turn = Callable[[Callable[[], None]], Awaitable[None]]
"""Runs one operation. It is given ``release``, which lets the next turn start before this one ends. Must not raise."""


class Lane:
    def __init__(self) -> None:
        self._waiting: deque[tuple[Turn, Context]] = deque()
        self._running: set[asyncio.Task[None]] = set()
        self._is_blocked = False  # by the turn at the head
        self._is_halted = False
        self._idle = asyncio.Event()
        self._idle.set()

    def add(self, turn: Turn) -> None:
        self._waiting.append((turn, copy_context()))
        self._idle.clear()
        self._go_on()

    def halt(self) -> None:
        """Start no more turns; running turns end by themselves."""
        self._is_halted = True
        self._go_on()

    async def drained(self) -> None:
        """Wait until no turn runs, and none waits or the lane is halted."""
        await self._idle.wait()

    def is_idle(self) -> bool:
        return self._idle.is_set()

    @property
    def is_halted(self) -> bool:
        return self._is_halted

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def _go_on(self) -> None:
        if self._is_blocked:
            return
        if self._waiting and not self._is_halted:
            self._is_blocked = True
            turn, context = self._waiting.popleft()
            task = asyncio.create_task(self._run(turn), context=context)
            self._running.add(task)
            task.add_done_callback(self._running.discard)
        elif not self._running:
            self._idle.set()

    async def _run(self, turn: Turn) -> None:
        released = False

        def release() -> None:
            nonlocal released
            if not released:
                released = True
                self._is_blocked = False
                self._go_on()

        try:
            await turn(release)
        finally:
            self._running.discard(asyncio.current_task())
            release()
            self._go_on()
