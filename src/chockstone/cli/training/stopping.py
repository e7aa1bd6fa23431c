"""Handles signals: the first one ends training after a checkpoint, the second one ends the process."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from types import FrameType, TracebackType
from typing import Any, Final, NoReturn

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
_ECHO_SECONDS: Final = 0.5  # make and other parents pass on a Ctrl-C that the terminal has sent to everyone


class Stopped(BaseException):
    """A signal came while nothing ran that could be cancelled."""


class Stopping:
    """While the block runs. To be used in the main thread; in others it does nothing, as no signal arrives there."""

    def __init__(self) -> None:
        self.number: int | None = None  # of the signal that came first
        self.on_hurry: Callable[[], object] | None = None  # the last thing done when the process ends at once
        self._cancel: Callable[[], object] | None = None
        self._since = 0.0
        self._before: dict[int, Any] = {}  # Any: what signal.signal returns

    def __enter__(self) -> Stopping:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._on_signal) for number in _SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @property
    def exit_code(self) -> int:
        assert self.number is not None, "no signal came"
        return 128 + self.number

    def cancels(self, task: asyncio.Task[Any]) -> None:
        """From now on, and until the task is done, a signal cancels it."""
        loop = asyncio.get_running_loop()
        self._cancel = lambda: loop.call_soon_threadsafe(task.cancel)
        task.add_done_callback(lambda _: setattr(self, "_cancel", None))

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        now = time.monotonic()
        if self.number is not None:
            if now - self._since > _ECHO_SECONDS:
                self._exit_at_once()
            return
        self.number, self._since = number, now
        if self._cancel is None:
            raise Stopped
        self._cancel()

    def _exit_at_once(self) -> NoReturn:
        """Without waiting for threads, which may hang."""
        if self.on_hurry is not None:
            self.on_hurry()
        exit_now(self.exit_code)


def exit_now(code: int) -> NoReturn:
    """End the process though threads of it run. What was printed is printed, and the cursor is visible."""
    with suppress(OSError, ValueError, RuntimeError):  # a stream that is closed, or just being written to
        if sys.stderr.isatty():
            sys.stderr.write("\x1b[?25h")
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)
