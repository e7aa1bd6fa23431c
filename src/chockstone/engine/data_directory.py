"""The data directory: all that one server keeps, and the lock that says whose it is at the moment.

The lock dies with the server that holds it, and with its worker, which inherits it: a new server must
not begin while the old one's worker still writes.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

DATABASE: Final = "catalog.sqlite3"
ARCHIVES: Final = "checkpoints"
JOURNALS: Final = "journal"
RUN_JOURNALS: Final = Path(JOURNALS, "runs")  # a directory for each run, named as in the store
SAMPLE_JOURNAL: Final = Path(JOURNALS, "samples")
STORE_RECORD: Final = "store.json"  # where archives are, if not here
CATALOG_RECORD: Final = "catalog.json"  # where the catalog is, if not here
KEYS_RECORD: Final = "keys-required"  # is there once the server had API keys
ENGINE_ID: Final = "engine-id"  # what a catalog elsewhere knows this directory by
_LOCK: Final = "lock"
_CHECK_SECONDS: Final = 0.05


class DirectoryInUse(Exception):
    """Another process owns the data directory."""


@contextlib.contextmanager
def owned(data: Path, *, wait_seconds: float = 0.0, on_wait: Callable[[], None] = lambda: None) -> Iterator[int]:
    """Keep others out of the directory for as long as the block runs, and whoever inherits the descriptor it yields.

    Somebody else's lock is waited for; ``on_wait`` is called when that begins. Raises DirectoryInUse, OSError.
    """
    descriptor = os.open(data / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if not _lock(descriptor, fcntl.LOCK_EX) and not _wait(descriptor, wait_seconds, on_wait):
            raise DirectoryInUse(f"a server uses the data directory {str(data)!r}")
        yield descriptor
    finally:
        os.close(descriptor)


def is_owned(data: Path) -> bool:
    """Whether another process owns the directory at this moment."""
    try:
        descriptor = os.open(data / _LOCK, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        return not _lock(descriptor, fcntl.LOCK_SH)
    finally:
        os.close(descriptor)


def _wait(descriptor: int, seconds: float, on_wait: Callable[[], None]) -> bool:
    """Whether the lock was ours in the end."""
    if not seconds:
        return False
    on_wait()
    deadline_monotonic = time.monotonic() + seconds
    while time.monotonic() < deadline_monotonic:
        time.sleep(_CHECK_SECONDS)
        if _lock(descriptor, fcntl.LOCK_EX):
            return True
    return False


def _lock(descriptor: int, operation: int) -> bool:
    try:
        fcntl.flock(descriptor, operation | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
