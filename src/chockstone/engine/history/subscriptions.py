"""Subscriptions: new points, as they are recorded, for those who wait for them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

from chockstone.engine.history.points import HistoryPoint

MAX_WAITING: Final = 4096  # points that a subscription holds until its reader takes them


@dataclass(frozen=True, slots=True)
class RunPoints:
    """New points of one run, oldest first."""

    run_id: str
    points: tuple[HistoryPoint, ...]


class Subscription:
    """An asynchronous iterator over ``RunPoints``. Use it as a context manager, or close it.

    The iteration ends when the server stops, when the run is removed, or when the reader falls behind
    (``has_fallen_behind``): it then reads the history from its cursor, and subscribes again.
    """

    def __init__(self, run_id: str | None, *, max_waiting: int, on_close: Callable[[Subscription], None]) -> None:
        self.run_id = run_id  # None: of all runs
        self.has_fallen_behind = False
        self._max_waiting = max_waiting
        self._on_close = on_close
        self._waiting: deque[RunPoints] = deque()
        self._count = 0
        self._news = asyncio.Event()
        self._has_ended = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> RunPoints:
        while not self._waiting:
            if self._has_ended:
                raise StopAsyncIteration
            self._news.clear()
            await self._news.wait()
        return self._take()

    async def next(self, *, timeout_seconds: float) -> RunPoints | None:
        """The next points; None if there are none in time, or none any more (``has_ended``)."""
        with suppress(TimeoutError, StopAsyncIteration):
            async with asyncio.timeout(timeout_seconds):
                return await anext(self)
        return None

    @property
    def has_ended(self) -> bool:
        return self._has_ended and not self._waiting

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def add(self, news: RunPoints) -> None:
        if self._has_ended:
            return
        self._count += len(news.points)
        if self._count > self._max_waiting:
            self.has_fallen_behind = True
            self._waiting.clear()
            self.end()
            return
        self._waiting.append(news)
        self._news.set()

    def end(self) -> None:
        """No points come after those that wait."""
        self._has_ended = True
        self._news.set()

    def close(self) -> None:
        self.end()
        self._waiting.clear()
        self._on_close(self)

    def _take(self) -> RunPoints:
        """The oldest news, joined with those of the same run that follow."""
        first = self._waiting.popleft()
        points = list(first.points)
        while self._waiting and self._waiting[0].run_id == first.run_id:
            points += self._waiting.popleft().points
        self._count -= len(points)
        return RunPoints(first.run_id, tuple(points))


class Subscriptions:
    def __init__(self) -> None:
        self._by_run: dict[str | None, set[Subscription]] = {}

    def open(self, run_id: str | None, *, max_waiting: int = MAX_WAITING) -> Subscription:
        subscription = Subscription(run_id, max_waiting=max_waiting, on_close=self._forget)
        self._by_run.setdefault(run_id, set()).add(subscription)
        return subscription

    def publish(self, run_id: str, points: Sequence[HistoryPoint]) -> None:
        if not self._by_run:
            return
        news = RunPoints(run_id, tuple(points))
        for key in (run_id, None):
            for subscription in self._by_run.get(key, ()):
                subscription.add(news)

    def end(self, run_id: str) -> None:
        """The run is removed."""
        for subscription in self._by_run.get(run_id, ()):
            subscription.end()

    def end_all(self) -> None:
        for subscriptions in self._by_run.values():
            for subscription in subscriptions:
                subscription.end()

    def _forget(self, subscription: Subscription) -> None:
        held = self._by_run.get(subscription.run_id, set())
        held.discard(subscription)
        if not held:
            self._by_run.pop(subscription.run_id, None)
