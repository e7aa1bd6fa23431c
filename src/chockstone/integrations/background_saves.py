"""Background saves of an adapter: what follows a save once it is durable, and failures that are raised later.

Hosts delete an old checkpoint as soon as the call that saves a new one returns. Here the new one is durable only later,
so deletions wait for it, and are dropped if it failed.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field

from chockstone.checkpoints import SaveHandle
from chockstone.checkpoints.errors import SaveAbandoned, SaveFailed

log = logging.getLogger(__name__)
Action = Callable[[], None]


@dataclass(slots=True, eq=False)
class _Save:
    handle: SaveHandle
    label: str
    actions: list[Action] = field(default_factory=list)
    ended: Future[None] = field(default_factory=Future)  # done after the actions
    is_open: bool = True  # actions may still be added


class BackgroundSaves:
    """The saves that one adapter has begun. Used from the thread that trains; actions run in threads that write."""

    def __init__(self) -> None:
        self._saves: list[_Save] = []  # not ended yet
        self._last: _Save | None = None
        self._failed: list[tuple[str, BaseException]] = []
        self._lock = threading.Lock()
        self._acting = threading.Lock()  # one action at a time

    def add(self, handle: SaveHandle, label: str, *, then: Action | None = None) -> Future[None]:
        """Watch a save. Once it is durable, ``then`` is called, and the future ends. ``label``: its name in messages.

        The future has the error of the save. An error of ``then`` is logged: the checkpoint is durable all the same.
        """
        save = _Save(handle, label, [then] if then is not None else [])
        with self._lock:
            self._saves.append(save)
            self._last = save
        handle.add_done_callback(lambda _: self._end(save))
        return save.ended

    def after_last(self, action: Action) -> None:
        """Call ``action`` when the last save is durable, at once if there is none; never if that save failed."""
        with self._lock:
            last = self._last
            if last is not None and last.is_open:
                last.actions.append(action)
                return
        self._act([action], last)

    def wait(self) -> None:
        """Return when all saves so far have ended, with what follows them. Errors are for ``raise_failed``."""
        with self._lock:
            pending = list(self._saves)
        for save in pending:
            save.handle.hurry()
        for save in pending:
            save.ended.exception()

    def raise_failed(self) -> None:
        """Raise SaveFailed if a save has failed since the last call."""
        with self._lock:
            failed, self._failed = self._failed, []
        if failed:
            label, error = failed[0]
            more = f". So did {len(failed) - 1} later saves" if len(failed) > 1 else ""
            raise SaveFailed(f"the save of checkpoint {label!r} failed: {error}{more}") from error

    def log_failed(self) -> None:
        """Log the saves that have failed, where another error is raised. ``raise_failed`` still raises them."""
        with self._lock:
            failed = list(self._failed)
        for label, error in failed:
            log.error("checkpoint not saved label=%s error=%s", label, error)

    def forget_last(self) -> None:
        """From here on ``after_last`` does not wait for the saves so far. Call it when they have ended."""
        with self._lock:
            self._last = None

    def _end(self, save: _Save) -> None:
        """In the thread that wrote the save."""
        error = save.handle.exception()
        with self._lock:
            save.is_open = False
            if error is not None and not isinstance(error, SaveAbandoned):
                self._failed.append((save.label, error))
        self._act(save.actions, save)
        if error is None:
            save.ended.set_result(None)
        else:
            save.ended.set_exception(error)
        with self._lock:
            self._saves.remove(save)  # last, so that ``wait`` waits for what follows the save

    def _act(self, actions: list[Action], after: _Save | None) -> None:
        if after is not None and after.handle.exception() is not None:
            if actions:
                log.warning("older checkpoints are kept because a save failed label=%s", after.label)
            return
        with self._acting:
            for action in actions:
                try:
                    action()
                except Exception as error:  # noqa: BLE001  # the checkpoint is durable, whatever happens to older ones
                    log.warning("older checkpoints not deleted error=%r", error)
