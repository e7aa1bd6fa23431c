"""Homes: where a Ray cluster of our own has its sockets and logs, for as long as its driver lives."""

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
_YOUNG_SECONDS: Final = 60.0  # whoever has just made one may not hold it yet


class TempDirectory:
    """Made at once; those go that drivers left behind who were killed. Raises OSError."""

    def __init__(self) -> None:
        sweep_homes()
        self.path = tempfile.mkdtemp(prefix=_PREFIX)  # where names are short: sockets want that
        self.temporary = os.path.join(self.path, "r")  # which Ray makes, and opens to everyone
        self._held = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        fcntl.flock(self._held, fcntl.LOCK_EX)  # which the kernel lets go of when this process ends

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._held)


def sweep_homes() -> None:
    """Remove this user's homes whose drivers are dead."""
    for path in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with suppress(OSError):  # another one sweeps, too; or it is alive, which is a BlockingIOError
            _remove_if_left(path)


def _remove_if_left(path: Path) -> None:
    held = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        found = os.fstat(held)
        if found.st_uid == os.getuid() and time.time() - found.st_mtime > _YOUNG_SECONDS:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path, ignore_errors=True)
    finally:
        os.close(held)
