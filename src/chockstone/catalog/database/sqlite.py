"""The SQLite file: checked before it is opened, configured by pragmas, and guarded against deletion."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Protocol

from chockstone.catalog.errors import CatalogUnavailable

_PRAGMAS: Final = (
    "PRAGMA journal_mode = WAL",
    "PRAGMA synchronous = NORMAL",
    "PRAGMA foreign_keys = ON",
    "PRAGMA busy_timeout = 10000",
)


class _Connection(Protocol):
    def cursor(self) -> Any: ...  # Any: a driver's cursor, which has no common type


def apply_pragmas(connection: _Connection, _record: object) -> None:
    cursor = connection.cursor()
    for pragma in _PRAGMAS:
        cursor.execute(pragma)
    cursor.close()


def refuse_what_cannot_be_opened(path: Path) -> None:
    """Raises CatalogUnavailable. aiosqlite must not try: a connection that fails leaks a thread."""
    if not path.parent.is_dir():
        raise CatalogUnavailable(
            f"the catalog {str(path)!r} is in a missing directory: make {str(path.parent)!r} first"
        )
    try:
        _look_into(path)
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", None)
        if code == sqlite3.SQLITE_NOTADB:
            raise CatalogUnavailable(
                f"{str(path)!r} is not a database: give the path of a catalog, or of no file"
            ) from error
        if code is not None and code & 0xFF == sqlite3.SQLITE_CANTOPEN:
            raise CatalogUnavailable(f"the catalog {str(path)!r} cannot be read: {error}") from error
        # any other error is left to the connection


def _look_into(path: Path) -> None:
    """Opens the file through SQLite: closing it in another way would drop the locks of this process's connections."""
    if not os.path.exists(path):  # or its directory is not readable
        return
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True)) as connection:
        connection.execute("PRAGMA schema_version").fetchone()


_SIDE_FILES: Final = ("-wal", "-shm")
_BUSY_SECONDS: Final = 5.0  # to wait for a running transaction


class SqliteGuard:
    """Notices that the catalog's files were deleted or replaced, and saves what only the open files still hold."""

    def __init__(self, path: Path) -> None:
        """The catalog must be of this version and open in this process. Raises CatalogUnavailable."""
        self.path = path
        try:
            self._connection = sqlite3.connect(
                f"{path.absolute().as_uri()}?mode=rw",
                uri=True,
                timeout=_BUSY_SECONDS,
                isolation_level=None,
                check_same_thread=False,
            )
            self._connection.execute(
                "SELECT count(*) FROM sqlite_master"
            ).fetchone()  # opens the -wal and -shm files, too
        except sqlite3.Error as error:
            raise CatalogUnavailable(f"the catalog {str(path)!r} cannot be read: {error}") from error
        files = [path, *(path.with_name(path.name + suffix) for suffix in _SIDE_FILES)]
        self._identities = {file: found for file in files if (found := _identity(file)) is not None}

    def missing(self) -> Path | None:
        """The first of the catalog's files that was deleted or replaced; None: all are the ones that were opened."""
        for file, identity in self._identities.items():
            if _identity(file) != identity:
                return file
        return None

    def save(self, missing: Path) -> str:
        """Save what only the lost file still holds, and say where. Blocks; never raises.

        Call it when nothing writes to the catalog any more.
        """
        try:
            if missing == self.path:
                name = self.path.name
                return (
                    f"what it held is in {str(self._copy())!r}: to use it, remove '{name}-wal' and '{name}-shm' "
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
