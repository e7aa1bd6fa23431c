"""A gate where a path blocks, which only an event loop that goes on can open.

The stand-in for a disk or a decoder waits at the gate. A path that leaves the loop alone passes it
after a few turns of the loop. One that runs inline, or makes the loop wait for its thread, never
would: the gate gives up after its guard and the check fails. No clock decides.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Executor, Future
from contextlib import asynccontextmanager
from typing import Any

import pytest

from chockstone.checkpoints.runtime import threads


class HeldTheLoop(AssertionError):
    pass


class LoopGate:
    def __init__(self, *, guard_seconds: float = 60.0) -> None:
        self._guard = guard_seconds
        self._reached = threading.Event()
        self._open = threading.Event()
        self._gave_up = threading.Event()
        self._checking: tuple[asyncio.AbstractEventLoop, asyncio.Task[Any]] | None = None

    def wait(self) -> None:
        """For what blocks, in whatever thread that is."""
        self._reached.set()
        if not self._open.wait(self._guard):
            self._gave_up.set()
            if self._checking is not None:
                loop, task = self._checking
                loop.call_soon_threadsafe(task.cancel)  # it may wait for what will never come now
            raise HeldTheLoop("the event loop did not go on while this was under way")

    def before(self, blocks: Callable[..., Any]) -> Callable[..., Any]:
        def waits(*values: Any, **options: Any) -> Any:
            self.wait()
            return blocks(*values, **options)

        return waits

    @asynccontextmanager
    async def watch(self) -> AsyncIterator[None]:
        """Around the path. Raises HeldTheLoop if the loop did not go on, AssertionError if nothing came to the gate."""
        task = asyncio.current_task()
        assert task is not None
        self._checking = asyncio.get_running_loop(), task
        opening = asyncio.create_task(self._open_soon())
        try:
            yield
        except BaseException as error:
            if not self._gave_up.is_set():
                raise
            task.uncancel()
            raise HeldTheLoop("the event loop was held") from error
        finally:
            self._checking = None
            opening.cancel()
            self._open.set()
        if self._gave_up.is_set():
            raise HeldTheLoop("the event loop was held")
        assert self._reached.is_set(), "the path does not come to the gate"

    async def _open_soon(self) -> None:
        while not self._reached.is_set():
            await asyncio.sleep(0.001)
        for _ in range(3):
            await asyncio.sleep(0)
        self._open.set()


class InlineExecutor(Executor):
    """Does in the caller's thread what it is given: what a pool must not be for an event loop."""

    def submit(self, work: Callable[..., Any], /, *values: Any, **options: Any) -> Future[Any]:
        done: Future[Any] = Future()
        try:
            done.set_result(work(*values, **options))
        except BaseException as error:
            done.set_exception(error)
        return done


def inline_to_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    async def to_thread(work: Callable[..., Any], /, *values: Any, **options: Any) -> Any:
        return work(*values, **options)

    async def in_thread(work: Callable[[], Any]) -> Any:
        return work()

    monkeypatch.setattr(asyncio, "to_thread", to_thread)
    monkeypatch.setattr(threads, "in_thread", in_thread)
