"""Flags: set once by any thread, and safe against Ctrl-C.

``threading.Event`` holds a lock in ``set``. A Ctrl-C at that moment leaves it locked, and the next caller hangs.
"""

from __future__ import annotations

import threading
from contextlib import suppress


class Flag:
    def __init__(self) -> None:
        self._is_raised = False
        self._gate = threading.Lock()  # opened when it is raised
        self._gate.acquire()

    def set(self) -> None:
        self._is_raised = True
        with suppress(RuntimeError):  # it is open already
            self._gate.release()

    def is_set(self) -> bool:
        return self._is_raised

    def wait(self, seconds: float) -> None:
        """Return when the flag is set, after ``seconds`` at the latest."""
        if self._is_raised or seconds <= 0:
            return
        if self._gate.acquire(timeout=min(seconds, threading.TIMEOUT_MAX)):
            with suppress(RuntimeError):
                self._gate.release()  # for the next one
