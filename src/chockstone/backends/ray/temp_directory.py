"""The temporary directory of a Ray cluster that a driver starts: its sockets and logs, until the driver ends."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

_PREFIX: Final = "chockstone-ray-"
_YOUNG_SECONDS: Final = 60.0  # a driver that has just created one may not have locked it yet


class TempDirectory:
    """Created by the constructor, which also removes directories of killed drivers. Raises OSError."""

    def __init__(self) -> None:
        remove_stale_directories()
        self.path = tempfile.mkdtemp(prefix=_PREFIX)  # the path is short, as the names of sockets must be
        self.temporary = os.path.join(self.path, "r")  # created by Ray, readable for all users
        self._descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)  # the kernel releases it when this process ends

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._descriptor)


def remove_stale_directories() -> None:
    """Remove this user's directories whose drivers are dead."""
    for path in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with suppress(OSError):  # another process removes it, or its driver is alive (BlockingIOError)
            _remove_if_stale(path)


def _remove_if_stale(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        found = os.fstat(descriptor)
        if found.st_uid == os.getuid() and time.time() - found.st_mtime > _YOUNG_SECONDS:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path, ignore_errors=True)
    finally:
        os.close(descriptor)
