"""Compute turns: many tasks share one compute thread.

A task is a generator that does a bounded piece of work between yields. Yielding None means "there is more to do".
Yielding a future means "resume me when this is done", and other tasks run meanwhile. The owners of tasks take turns
round robin, and so do the tasks of one owner. Generation is a source of work beside the tasks: it gets as much time as
all tasks together when both have work.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Generator
from concurrent.futures import Future
from contextvars import Context
from dataclasses import dataclass
from typing import Any, Protocol

from chockstone.sampling.round_robin import RoundRobin

Steps = Generator["Future[Any] | None", None, None]


@dataclass(frozen=True, slots=True)
class _Task:
    number: int
    owner: str
    steps: Steps


class TaskSource(Protocol):
    """Work in small steps beside the tasks: generation."""

    def has_work(self) -> bool: ...

    def step(self) -> None: ...


class Schedule(Protocol):
    """Decides which task runs when, on the compute thread."""

    def post(self, action: Callable[[], None]) -> None:
        """Call ``action`` on the compute thread, soon. May be called from any thread."""

    def start(self, steps: Steps, *, owner: str = "") -> None:
        """``owner``: the user whose turns the task takes."""

    def progress(self) -> tuple[int, bool]:
        """How many turns were finished so far, and whether there is work. May be called from any thread."""

    def run(self, is_over: Callable[[], bool]) -> None:
        """Run until ``is_over`` returns True and all started tasks have ended."""


class ComputeTurns:
    """The compute thread's loop. Only ``post`` and ``progress`` may be called from other threads.

    Tasks are numbered from 0 as they are started.
    """

    def __init__(
        self,
        source: TaskSource,
        *,
        now: Callable[[], float] = time.perf_counter,
        on_turn: Callable[[int | None], None] = lambda _: None,
    ) -> None:
        """``on_turn`` is called before each turn with the number of the task, or None for the source."""
        self._source = source
        self._now = now
        self._on_turn = on_turn
        self._started = 0
        self._inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._ready: RoundRobin[_Task] = RoundRobin()
        self._waiting = 0  # number of tasks that wait for a future
        self._finished = 0  # number of turns
        self._is_busy = False
        self._lead = 0.0  # seconds that tasks have had more than the source

    def post(self, action: Callable[[], None]) -> None:
        self._inbox.put(action)

    def start(self, steps: Steps, *, owner: str = "") -> None:
        self._ready.add(owner, _Task(self._started, owner, steps))
        self._started += 1

    def progress(self) -> tuple[int, bool]:
        return self._finished, self._is_busy

    def is_idle(self) -> bool:
        return not self._ready and not self._waiting and not self._source.has_work()

    def run(self, is_over: Callable[[], bool]) -> None:
        while not (is_over() and self.is_idle()):
            self._take_in()
            self._work()

    def _take_in(self) -> None:
        if not self._ready and not self._source.has_work():
            self._is_busy = False
            action = self._inbox.get()
            self._is_busy = True
            action()
        while True:
            try:
                self._inbox.get_nowait()()
            except queue.Empty:
                return

    def _work(self) -> None:
        has_work = self._source.has_work()
        if not self._ready and not has_work:
            return
        self._is_busy = True
        both = bool(self._ready) and has_work
        if not both:
            self._lead = 0.0
        started = self._now()
        if has_work and (not self._ready or self._lead > 0):
            self._on_turn(None)
            self._source.step()
            self._lead -= self._now() - started if both else 0.0
        else:
            self._advance(self._ready.take())
            self._lead += self._now() - started if both else 0.0
        self._finished += 1

    def _advance(self, task: _Task) -> None:
        self._on_turn(task.number)
        try:
            awaited = next(task.steps)
        except StopIteration:
            return
        if awaited is None:
            self._ready.add(task.owner, task)
            return
        self._waiting += 1
        awaited.add_done_callback(lambda _: self.post(lambda: self._resume(task)))

    def _resume(self, task: _Task) -> None:
        self._waiting -= 1
        self._ready.add(task.owner, task)


def in_context(context: Context, steps: Steps) -> Steps:
    """The steps, each of them run in this context."""
    while True:
        try:
            awaited = context.run(next, steps)
        except StopIteration:
            return
        yield awaited
