"""Handles: a save in the background, to wait for, to await or to watch."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Generator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from chockstone.checkpoints.errors import SaveAbandoned
from chockstone.checkpoints.retention.policy import Removal
from chockstone.checkpoints.runtime.flag import Flag


@dataclass(frozen=True, slots=True)
class SavedCheckpoint:
    """A checkpoint that is durable and visible."""

    name: str
    url: str
    step: int | None
    size_bytes: int
    tensor_bytes: int
    blocked_seconds: float  # how long save() kept its caller
    seconds: float  # from the call to durable
    removed: tuple[Removal, ...] = ()  # by the retention policy, after the commit
    seal: str = ""  # SHA-256 of its manifest, in hexadecimal: what ``Archive`` has as its seal


@dataclass(frozen=True, slots=True)
class SaveProgress:
    """How much of a save is written."""

    bytes_done: int
    bytes_total: int

    @property
    def fraction(self) -> float:
        return self.bytes_done / self.bytes_total if self.bytes_total else 0.0


class SaveHandle:
    """What ``save`` returns once the state is copied.

    ``result`` waits, ``await handle`` waits without blocking the loop; both return ``SavedCheckpoint`` or
    raise the error of the save. An error that no caller has seen is raised by the next save.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._future: Future[SavedCheckpoint] = Future()
        self._future.set_running_or_notify_cancel()  # cancelling a waiter never cancels the save
        self._abandoned = Flag()
        self._hurry = Flag()
        self._seen = False
        self._watched = False
        self._caller: int | None = None  # the thread that is in ``save``, once the save is queued
        self._done = 0
        self._total = 0
        self._lock = threading.Lock()

    @property
    def progress(self) -> SaveProgress:
        """How much is written. It does not wait."""
        return SaveProgress(self._done, self._total)

    def done(self) -> bool:
        """Whether the save has ended, with a checkpoint or with an error."""
        return self._future.done()

    def result(self, timeout: float | None = None) -> SavedCheckpoint:
        """Wait until the checkpoint is durable. After a TimeoutError the save continues."""
        self.hurry()
        error = self._future.exception(timeout)
        self._seen = True
        if error is not None:
            raise error
        return self._future.result()

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait for the end of the save and return its error; None: the checkpoint is durable."""
        self.hurry()
        error = self._future.exception(timeout)
        self._seen = True
        return error

    def add_done_callback(self, call: Callable[[SaveHandle], None]) -> None:
        """Call ``call`` when the save has ended, in the thread that ended it. The error then counts as seen."""
        self._watched = True
        self._future.add_done_callback(lambda _: call(self))

    def hurry(self) -> None:
        """Write without a rate limit from here on. ``result`` does this, too; awaiting does not."""
        self._hurry.set()

    def abandon(self) -> None:
        """Cancel the save unless it is committed already; it then ends with SaveAbandoned."""
        self._abandoned.set()
        self.hurry()

    def is_abandoned(self) -> bool:
        return self._abandoned.is_set()

    def __await__(self) -> Generator[Any, None, SavedCheckpoint]:
        try:
            saved = yield from asyncio.wrap_future(self._future).__await__()
        finally:
            self._seen = self._seen or self._future.done()
        return saved

    def __repr__(self) -> str:
        state = "done" if self.done() else f"{self.progress.fraction:.0%}"
        return f"<SaveHandle {self.name} {state}>"

    # The methods below are for the checkpointer.

    def _plan(self, total: int) -> None:
        self._total = total

    def _advance(self, count: int) -> None:
        with self._lock:
            self._done += count

    def _finish(self, saved: SavedCheckpoint) -> None:
        self._future.set_result(saved)

    def _fail(self, error: BaseException, *, seen: bool = False) -> None:
        self._seen = seen
        self._future.set_exception(error)

    def _wait(self) -> None:
        """Return when the save has ended or failed. An error stays unseen."""
        self._future.exception()

    def _unseen_error(self) -> BaseException | None:
        if self._seen or self._watched or not self._future.done():
            return None
        error = self._future.exception()
        return None if isinstance(error, SaveAbandoned) else error  # the caller asked for it
