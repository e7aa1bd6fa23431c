"""The SQLite file: what can be said of it before it is opened, and how its connections are set up."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
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
    """aiosqlite leaves a thread behind a connection that failed, which would speak to a closed loop."""
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
        # anything else is for the connection to say


def _look_into(path: Path) -> None:
    """Through SQLite alone: closing the file in another way would drop the locks of this process's connections."""
    if not os.path.exists(path):  # also where it may not be asked
        return
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True)) as connection:
        connection.execute("PRAGMA schema_version").fetchone()
