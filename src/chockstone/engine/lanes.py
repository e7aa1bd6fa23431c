"""Lanes: the order in which one run's operations may run.

A lane runs the operations of a single run in the order they were acknowledged, one at a time, each
``seq_id`` once. Numbers may be missing and may come late: a lane never waits for one. It knows
nothing of tensors, databases or HTTP.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, Protocol

from chockstone.wire.failures import BadRequest

REMEMBERED: Final = 4096  # seq_ids whose request id a repeat still gets


class LaneFull(Exception):
    """Too many operations wait; the client should try again in a moment."""


class Work(Protocol):
    def __call__(self, release: Callable[[], None]) -> Awaitable[None]:
        """Run to the end. ``release`` lets the next one start before that. Must not raise."""


@dataclass(frozen=True, slots=True)
class Operation:
    request_id: str
    seq_id: int | None  # None: from a client that does not number its requests
    work: Work


class Lane:
    def __init__(self, *, limit: int) -> None:
        self._limit = limit
        self._waiting: deque[Operation] = deque()
        self._running: set[asyncio.Task[None]] = set()
        self._is_blocked = False  # by the operation at the head
        self._seen: OrderedDict[int, str] = OrderedDict()
        self._forgotten_below = -1  # every seq_id up to this one counts as used
        self._idle = asyncio.Event()
        self._idle.set()

    def find(self, seq_id: int | None) -> str | None:
        """The request id that this ``seq_id`` got the first time. Raises BadRequest if it was long ago."""
        if seq_id is None:
            return None
        if (request_id := self._seen.get(seq_id)) is not None:
            return request_id
        if seq_id <= self._forgotten_below:
            raise BadRequest(
                f"seq_id {seq_id} is too old: this run is at {next(reversed(self._seen))}. "
                f"Number requests upwards; the last {REMEMBERED} are remembered for retries."
            )
        return None

    def add(self, operation: Operation, *, is_last: bool = False) -> None:
        """Take the operation in; ``find`` has said that it is new. Raises LaneFull with nothing changed.

        For the last one there is always room.
        """
        if len(self._waiting) >= self._limit and not is_last:
            raise LaneFull
        if operation.seq_id is not None:
            self._seen[operation.seq_id] = operation.request_id
            if len(self._seen) > REMEMBERED:
                self._forgotten_below = max(self._forgotten_below, self._seen.popitem(last=False)[0])
        self._waiting.append(operation)
        self._idle.clear()
        self._go_on()

    async def drained(self) -> None:
        """Until nothing waits and nothing runs."""
        await self._idle.wait()

    def is_idle(self) -> bool:
        return self._idle.is_set()

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def _go_on(self) -> None:
        if self._is_blocked:
            return
        if self._waiting:
            self._is_blocked = True
            task = asyncio.create_task(self._run(self._waiting.popleft()))
            self._running.add(task)
            task.add_done_callback(self._running.discard)
        elif not self._running:
            self._idle.set()

    async def _run(self, operation: Operation) -> None:
        released = False

        def release() -> None:
            nonlocal released
            if not released:
                released = True
                self._is_blocked = False
                self._go_on()

        try:
            await operation.work(release)
        finally:
            self._running.discard(asyncio.current_task())
            release()
            self._go_on()
