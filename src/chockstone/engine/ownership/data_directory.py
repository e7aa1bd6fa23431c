"""The data directory of a server, and its lock.

The server holds the lock, and its worker inherits it: a new server must not start while the old one's worker still
writes. The directory itself is locked, too, so that deleting the lock file does not let a second server in.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

DATABASE: Final = "catalog.sqlite3"
ARCHIVES: Final = "checkpoints"
JOURNALS: Final = "journal"
RUN_JOURNALS: Final = Path(JOURNALS, "runs")  # a directory for each run, named as in the store
SAMPLE_JOURNAL: Final = Path(JOURNALS, "samples")
HISTORIES: Final = "history"  # the metrics of each run, a file each
CONVERSATIONS: Final = "conversations"  # what users had kept to train on: a directory for each user
JOURNAL_MARKS: Final = "journal-marks"  # how far each run's journal was acknowledged; not beside what it watches
UPLOADS: Final = "uploads"  # files of imports that are not finished
TRACKING: Final = "tracking"  # what experiment trackers got, and files of trackers
STORE_RECORD: Final = "store.json"  # where archives are, if not here
CATALOG_RECORD: Final = "catalog.json"  # where the catalog is, if not here
KEYS_RECORD: Final = "keys-required"  # is there once the server had API keys
CLOCK_RECORD: Final = "clock.json"  # the last time that a server knew
CLOCK_CONFIRMED: Final = "clock-confirmed"  # put there by an operator
ENGINE_ID: Final = "engine-id"  # what a catalog elsewhere knows this directory by
LOCK: Final = "lock"
_CHECK_SECONDS: Final = 0.05


@contextlib.contextmanager
def private_files() -> Iterator[None]:
    """What this process, and those that it starts, make inside is its user's alone: 0700 and 0600."""
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)


def is_open_to_others(directory: Path) -> bool:
    """Whether other users of the machine can look into it. Raises OSError."""
    return bool(os.stat(directory).st_mode & stat.S_IRWXO)


class DirectoryInUse(Exception):
    """Another process owns the data directory."""


@contextlib.contextmanager
def owned(
    data: Path,
    *,
    wait_seconds: float = 0.0,
    on_wait: Callable[[], None] = lambda: None,
    gives_up: Callable[[], bool] = lambda: False,
) -> Iterator[int]:
    """Keep others out of the directory for as long as the block runs, and whoever inherits the descriptor it yields.

    Another process's lock is waited for. ``on_wait`` is called when that begins; ``gives_up`` is asked from then on
    whether to wait no longer. Raises DirectoryInUse, OSError.
    """
    with _Locks(data) as locks:
        if not locks.take() and not _wait(locks, wait_seconds, on_wait, gives_up):
            raise DirectoryInUse(f"a server uses the data directory {str(data)!r}")
        yield locks.descriptor


def is_owned(data: Path) -> bool:
    """Whether another process owns the directory at this moment."""
    return any(_is_locked(path) for path in (data / LOCK, data))


def is_lock_lost(data: Path, descriptor: int) -> bool:
    """Whether the lock file that ``owned`` yielded is not the one in the directory any more. Raises OSError."""
    try:
        found = os.stat(data / LOCK)
    except (FileNotFoundError, NotADirectoryError):
        return True
    held = os.fstat(descriptor)
    return (found.st_dev, found.st_ino) != (held.st_dev, held.st_ino)


class _Locks:
    """On the lock file, and on the directory itself, which keeps others out when the file was deleted."""

    def __init__(self, data: Path) -> None:
        self._data = data
        self._directory = os.open(data, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self.descriptor = -1

    def __enter__(self) -> _Locks:
        return self

    def __exit__(self, *_error: object) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)
        os.close(self._directory)

    def take(self) -> bool:
        """Whether both are ours. Raises OSError."""
        if self.descriptor >= 0 and is_lock_lost(self._data, self.descriptor):
            os.close(self.descriptor)
            self.descriptor = -1
        if self.descriptor < 0:
            self.descriptor = os.open(self._data / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if not _lock(self.descriptor, fcntl.LOCK_EX) or is_lock_lost(self._data, self.descriptor):
            return False
        return self._lock_directory()

    def _lock_directory(self) -> bool:
        try:
            return _lock(self._directory, fcntl.LOCK_EX)
        except OSError:  # some network file systems cannot lock a directory; the file's lock has to do
            return True


def _wait(locks: _Locks, seconds: float, on_wait: Callable[[], None], gives_up: Callable[[], bool]) -> bool:
    """Whether the lock was ours in the end."""
    if not seconds:
        return False
    on_wait()
    deadline_monotonic = time.monotonic() + seconds
    while time.monotonic() < deadline_monotonic:
        time.sleep(_CHECK_SECONDS)
        if locks.take():
            return True
        if gives_up():
            return False
    return False


def _is_locked(path: Path) -> bool:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        return not _lock(descriptor, fcntl.LOCK_SH)
    except OSError:  # as above
        return False
    finally:
        os.close(descriptor)


def _lock(descriptor: int, operation: int) -> bool:
    try:
        fcntl.flock(descriptor, operation | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
