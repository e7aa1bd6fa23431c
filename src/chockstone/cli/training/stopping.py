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

from chockstone.cli.output.exit_codes import ExitCode
from chockstone.cli.training.server import TrainingServer

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
_ECHO_SECONDS: Final = 0.5  # make and other parents forward a Ctrl-C that the terminal sent to the whole process group


class Stopped(BaseException):
    """A signal came while nothing ran that could be cancelled."""


class Stopping:
    """Handles signals while its block runs. Does nothing outside the main thread, where no signal arrives."""

    def __init__(self) -> None:
        self.number: int | None = None  # of the signal that came first
        self._server: TrainingServer | None = None  # killed when the process ends immediately
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
        return ExitCode.INTERRUPTED if self.number == signal.SIGINT else ExitCode.TERMINATED

    def cancels(self, task: asyncio.Task[Any]) -> None:
        """From now on, and until the task is done, a signal cancels it."""
        loop = asyncio.get_running_loop()
        self._cancel = lambda: loop.call_soon_threadsafe(task.cancel)
        task.add_done_callback(lambda _: setattr(self, "_cancel", None))

    def kills(self, server: TrainingServer) -> None:
        """From now on, a second signal kills this server before the process ends."""
        self._server = server

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
        if self._server is not None:
            self._server.kill()
        exit_now(self.exit_code)


def exit_now(code: int) -> NoReturn:
    """End the process though threads of it run. What was printed is printed, and the cursor is visible."""
    with suppress(OSError, ValueError, RuntimeError):  # a stream that is closed, or just being written to
        if sys.stderr.isatty():
            sys.stderr.write("\x1b[?25h")
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)
