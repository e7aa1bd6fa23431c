"""Copy progress: how much of a snapshot is copied, for threads that write what is copied already."""

from __future__ import annotations

import sys
import threading
import time
from queue import SimpleQueue
from typing import Final, Self

_ALL: Final = sys.maxsize


class CopyFailed(Exception):
    """The copy ended early, with ``error``, which its caller gets."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(str(error))
        self.error = error


class CopyProgress:
    """The threads that copy call ``advance``, and the caller ends with ``end`` or ``fail``. Other threads wait.

    A Ctrl-C may interrupt the caller anywhere. So these three methods hold no lock of Python; those that wait must not
    run in the main thread.
    """

    def __init__(self) -> None:
        self.ended_at = 0.0  # by time.perf_counter
        self._events: SimpleQueue[tuple[int, int] | BaseException] = SimpleQueue()
        self._change = threading.Condition()
        self._is_reading = False  # a waiting thread takes events from the queue for all
        self._ranges: dict[int, int] = {}  # copied ones with a gap before them: start → end
        self._copied = 0  # all bytes before this position
        self._error: BaseException | None = None

    @classmethod
    def ended(cls) -> Self:
        """Of a copy that is made."""
        progress = cls()
        progress.end()
        return progress

    def advance(self, start: int, end: int) -> None:
        """The bytes from ``start`` to ``end`` are copied. Ranges do not overlap, and the first begins at 0."""
        self._events.put((start, end))

    def end(self) -> None:
        """All bytes are copied."""
        self.ended_at = time.perf_counter()
        self._events.put((0, _ALL))

    def fail(self, error: BaseException) -> None:
        """No further byte will be copied."""
        self._events.put(error)

    def wait_for(self, position: int) -> None:
        """Return when all bytes before ``position`` are copied. Raises CopyFailed if they never will be."""
        if self._copied >= position:
            return
        with self._change:
            while self._copied < position:
                if self._error is not None:
                    raise CopyFailed(self._error)
                self._next_event()

    def wait_until_made(self) -> None:
        """Return when the caller has called ``end``. Raises CopyFailed if it never will."""
        self.wait_for(_ALL)

    def wait_until_ended(self) -> None:
        """Return when no thread writes to the memory any more."""
        with self._change:
            while self._copied < _ALL and self._error is None:
                self._next_event()

    def _next_event(self) -> None:
        if self._is_reading:
            self._change.wait()
            return
        self._is_reading = True
        self._change.release()
        try:
            event = self._events.get()
        finally:
            self._change.acquire()
            self._is_reading = False
        if isinstance(event, BaseException):
            self._error = event
        elif event[1] == _ALL:
            self._copied = _ALL
        else:
            self._ranges[event[0]] = event[1]
            while (end := self._ranges.pop(self._copied, None)) is not None:
                self._copied = end
        self._change.notify_all()
