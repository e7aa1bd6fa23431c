"""Flags: raised once, by any thread, and never stuck.

``threading.Event`` has a lock, which a Ctrl-C that falls into ``set`` takes with it: whoever comes next waits for ever.
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
        """Until it is raised, but no longer."""
        if self._is_raised or seconds <= 0:
            return
        if self._gate.acquire(timeout=min(seconds, threading.TIMEOUT_MAX)):
            with suppress(RuntimeError):
                self._gate.release()  # for the next one
