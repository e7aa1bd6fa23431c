"""The spare worker: a process that has imported torch, and waits to replace a worker that died.

It holds no models: it reads them when it is promoted. So a spare takes the memory of its imports, and a new worker does
not have to wait for them. Imports no torch.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress

from chockstone.backends.supervision.process import PROMOTION, WorkerProcess

log = logging.getLogger(__name__)


class SpareWorker:
    """At most one process that waits. All methods are for one thread: the kernel kills a worker when the thread that
    spawned it ends."""

    def __init__(self, spawn: Callable[[], WorkerProcess]) -> None:
        """``spawn`` starts a worker that waits for ``PROMOTION`` before it loads models. It may raise OSError."""
        self._spawn = spawn
        self._waiting: WorkerProcess | None = None

    @property
    def pid(self) -> int | None:
        """Of the process that waits; None: there is none, or it has died."""
        return None if self._waiting is None or self._waiting.process.poll() is not None else self._waiting.process.pid

    def fill(self) -> bool:
        """Start a spare unless one waits. Returns whether a spare had died unnoticed, or could not be started."""
        if self.pid is not None:
            return False
        has_died = self._drop_dead()
        try:
            self._waiting = self._spawn()
        except OSError as error:
            log.warning("spare worker not started error=%s; a worker that dies is replaced by a new process", error)
            return True
        log.debug("spare worker started pid=%d", self._waiting.process.pid)
        return has_died

    def promote(self) -> WorkerProcess | None:
        """Have the spare load the models and work. Returns None if there is no living spare.

        A spare that dies from here on is a worker that died before it was ready.
        """
        self._drop_dead()
        spare, self._waiting = self._waiting, None
        if spare is None:
            return None
        try:
            spare.channel.sendall(PROMOTION)
        except OSError:  # it died a moment ago
            spare.end()
            return None
        log.info("spare worker promoted pid=%d", spare.process.pid)
        return spare

    def end(self) -> None:
        """End the spare, if there is one."""
        if self._waiting is not None:
            self._waiting.end()
            self._waiting = None

    def _drop_dead(self) -> bool:
        if self._waiting is None or (code := self._waiting.process.poll()) is None:
            return False
        log.warning("spare worker died code=%d", code)
        with suppress(OSError):
            self._waiting.channel.close()
        self._waiting = None
        return True
