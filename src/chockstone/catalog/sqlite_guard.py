"""The guard of a SQLite catalog: notices when its files are deleted or replaced, and saves what they held.

SQLite goes on with the files that it has open, so a server whose catalog was deleted would serve from it until it
ends, and lose all of it then. The guard's own connection keeps the files open: while it is, SQLite itself never
removes the ``-wal`` file.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from chockstone.catalog.errors import CatalogUnavailable

_SIDE_FILES: Final = ("-wal", "-shm")
_BUSY_SECONDS: Final = 5.0  # for a transaction that is under way


class SqliteGuard:
    def __init__(self, path: Path) -> None:
        """For a catalog that is up to date and open elsewhere in this process. Raises CatalogUnavailable."""
        self.path = path
        try:
            self._connection = sqlite3.connect(
                f"{path.absolute().as_uri()}?mode=rw",
                uri=True,
                timeout=_BUSY_SECONDS,
                isolation_level=None,
                check_same_thread=False,
            )
            self._connection.execute("SELECT count(*) FROM sqlite_master").fetchone()  # opens the other files, too
        except sqlite3.Error as error:
            raise CatalogUnavailable(f"the catalog {str(path)!r} cannot be read: {error}") from error
        files = [path, *(path.with_name(path.name + suffix) for suffix in _SIDE_FILES)]
        self._identities = {file: found for file in files if (found := _identity(file)) is not None}

    def missing(self) -> Path | None:
        """The first of the catalog's files that is not the one that was opened any more; None: all are."""
        for file, identity in self._identities.items():
            if _identity(file) != identity:
                return file
        return None

    def save(self, missing: Path) -> str:
        """Write down what only the lost file still holds, and say where that is. Blocks; never raises.

        To be called when nothing is to be written any more.
        """
        try:
            if missing == self.path:
                name = self.path.name
                return (
                    f"what it held is in {str(self._copy())!r}: to go on with it, remove '{name}-wal' and '{name}-shm' "
                    f"and rename that file to {name!r}"
                )
            self._connection.execute("PRAGMA wal_checkpoint(FULL)")
        except (sqlite3.Error, OSError) as error:
            return f"what it held could not be saved: {error}"
        return f"what it held is in {str(self.path)!r} now"

    def close(self) -> None:
        self._connection.close()

    def _copy(self) -> Path:
        target = self.path.with_name(f"{self.path.name}.saved-{datetime.now(UTC):%Y%m%dT%H%M%S}")
        os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        with closing(sqlite3.connect(target)) as copy:
            self._connection.backup(copy)
        return target


def _identity(path: Path) -> tuple[int, int] | None:
    """None: there is no such file."""
    try:
        found = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found.st_dev, found.st_ino
