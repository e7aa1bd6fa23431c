"""The data directory: all that one server keeps, and the lock that says whose it is at the moment.

The lock dies with the process that holds it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

DATABASE: Final = "catalog.sqlite3"
ARCHIVES: Final = "checkpoints"
_LOCK: Final = "lock"


class DirectoryInUse(Exception):
    """Another process owns the data directory."""


@contextlib.contextmanager
def owned(data: Path) -> Iterator[None]:
    """Keep others out of the directory for as long as the block runs. Raises DirectoryInUse, OSError."""
    descriptor = os.open(data / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if not _lock(descriptor, fcntl.LOCK_EX):
            raise DirectoryInUse(f"a server uses the data directory {str(data)!r}")
        yield
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


def _lock(descriptor: int, operation: int) -> bool:
    try:
        fcntl.flock(descriptor, operation | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
