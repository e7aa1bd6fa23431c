"""Buffers: a fixed number of snapshot buffers, granted in the order of the requests."""

from __future__ import annotations

import threading
from collections import deque
from concurrent.futures import Future

from chockstone.checkpoints.saving.snapshot import Snapshotter


class Buffers:
    """Tickets are futures, so that a thread can wait for one and a coroutine can await it."""

    def __init__(self, count: int) -> None:
        if count < 1:
            raise ValueError(f"buffers={count!r}: at least one snapshot is needed to save anything")
        self._lock = threading.RLock()  # a signal handler may save, too
        self._free = [Snapshotter() for _ in range(count)]
        self._waiting: deque[Future[Snapshotter]] = deque()

    def ticket(self) -> Future[Snapshotter]:
        ticket: Future[Snapshotter] = Future()
        with self._lock:
            if self._free:
                ticket.set_result(self._free.pop())
            else:
                self._waiting.append(ticket)
        return ticket

    def give_up(self, ticket: Future[Snapshotter]) -> None:
        """Return a ticket unused, whether it was granted or not."""
        if not ticket.cancel() and not ticket.cancelled():
            self.release(ticket.result())

    def release(self, snapshotter: Snapshotter) -> None:
        with self._lock:
            while self._waiting:
                ticket = self._waiting.popleft()
                if ticket.set_running_or_notify_cancel():
                    ticket.set_result(snapshotter)
                    return
            self._free.append(snapshotter)
