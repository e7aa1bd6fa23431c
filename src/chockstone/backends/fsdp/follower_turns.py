"""Led turns: a follower's schedule, which is its leader's.

Tasks have the numbers they have at the leader, since all ranks start the same ones in the same order. A turn may come
before the future that its task waits for is done here; then the follower waits, and runs what is posted meanwhile.
"""

from __future__ import annotations

import queue
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from chockstone.backends.channel import Message
from chockstone.backends.worker.compute_turns import Steps, TaskSource


@dataclass(slots=True)
class _Task:
    steps: Steps
    awaited: Future[Any] | None = None


class FollowerTurns:
    """Only ``post``, ``pulse`` and ``order`` may be called from other threads than the compute thread."""

    def __init__(self, source: TaskSource, take: Callable[[Message], None]) -> None:
        self._source = source
        self._take = take
        self._orders: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._tasks: dict[int, _Task] = {}
        self._started = 0
        self._finished = 0

    def post(self, action: Callable[[], None]) -> None:
        self._inbox.put(action)

    def start(self, steps: Steps, *, party: str = "") -> None:  # noqa: ARG002  # the leader knows whose turn it is
        self._tasks[self._started] = _Task(steps)
        self._started += 1

    def pulse(self) -> tuple[int, bool]:
        return self._finished, bool(self._tasks)

    def order(self, order: Message) -> None:
        """What the leader is about to do, as its herald tells it."""
        self._orders.put(order)

    def run(self, is_over: Callable[[], bool]) -> None:  # noqa: ARG002  # the leader knows when it is over
        """Until the leader says that it was the last."""
        while "over" not in (order := self._orders.get()).values:
            self._run_posted()
            if "message" in order.values:
                self._take(Message(order.values["message"], order.body))
                continue
            number = order.values["turn"]
            if number is None:
                self._source.step()
            else:
                self._advance(number)
            self._finished += 1
        while self._tasks:  # none, unless the leader left one behind
            self._tasks.popitem()[1].steps.close()

    def _advance(self, number: int) -> None:
        task = self._tasks[number]
        while task.awaited is not None and not task.awaited.done():
            self._inbox.get()()
        try:
            task.awaited = next(task.steps)
        except StopIteration:
            del self._tasks[number]
            return
        if task.awaited is not None:
            task.awaited.add_done_callback(lambda _: self.post(_nothing))  # to wake whoever waits above

    def _run_posted(self) -> None:
        while not self._inbox.empty():
            self._inbox.get()()


def _nothing() -> None:
    pass
