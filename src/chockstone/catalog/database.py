"""The database: statements in, rows out, and its errors in this room's words.

Knows no table. SQLite lets one connection write at a time, so writers queue here, in order, where
waiting costs nothing; other processes are waited for by SQLite itself. A transaction once begun
runs to its end even if its caller is cancelled: a driver interrupted halfway keeps its locks.
"""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

from sqlalchemy import Executable, event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DataError, DBAPIError, IntegrityError, StatementError
from sqlalchemy.exc import TimeoutError as NoConnectionFree
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from chockstone.catalog.errors import CatalogUnavailable, UnstorableValue

T = TypeVar("T")
AnyRow = Sequence[Any]  # Any: columns are of all types

DRIVERS: Final = {
    "sqlite": "sqlite+aiosqlite",
    "postgres": "postgresql+asyncpg",
    "postgresql": "postgresql+asyncpg",
}
_USE: Final = "use sqlite:///PATH or postgresql://USER@HOST/DATABASE"
_PRAGMAS: Final = (
    "PRAGMA journal_mode = WAL",
    "PRAGMA synchronous = NORMAL",
    "PRAGMA foreign_keys = ON",
    "PRAGMA busy_timeout = 10000",
)
_CONNECTIONS: Final = 8  # kept open; with SQLite each is a thread
_VALUE_STATES: Final = ("22", "54")  # SQLSTATE: data exceptions, limits exceeded
_TO_JSON: Final = partial(json.dumps, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


class Database:
    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine
        self._writers = asyncio.Lock()
        self._under_way: set[asyncio.Task[Any]] = set()  # Any: tasks of all results

    @classmethod
    def at(cls, url: str) -> Database:
        """Connects to nothing yet, though a SQLite file that can never be opened is refused."""
        target = _target(url)
        if target.get_backend_name() == "sqlite":
            _refuse_what_cannot_be_opened(Path(target.database or ""))
        try:
            engine = create_async_engine(target, json_serializer=_TO_JSON, pool_size=_CONNECTIONS, max_overflow=0)
        except ModuleNotFoundError as error:
            raise CatalogUnavailable(
                f"the catalog {target.render_as_string()!r} needs the Python package {error.name!r}, "
                f"which is not installed: `pip install {error.name}`"
            ) from error
        if engine.dialect.name == "sqlite":
            event.listen(engine.sync_engine, "connect", _apply_pragmas)
        return cls(engine)

    @property
    def is_sqlite(self) -> bool:
        return self._engine.dialect.name == "sqlite"

    @property
    def shown_url(self) -> str:
        """For messages: without its password."""
        return self._engine.url.render_as_string(hide_password=True)

    async def close(self) -> None:
        """Waits for what is under way."""
        await asyncio.gather(*self._under_way, return_exceptions=True)
        await self._engine.dispose()

    async def read(self, query: Executable) -> Sequence[AnyRow]:
        async def work(connection: AsyncConnection) -> Sequence[AnyRow]:
            return (await connection.execute(query)).all()

        return await self.run(work, writes=False)

    async def write(self, *statements: Executable) -> list[Sequence[AnyRow]]:
        """All in one transaction, or none; the rows that each returned."""

        async def work(connection: AsyncConnection) -> list[Sequence[AnyRow]]:
            returned: list[Sequence[AnyRow]] = []
            for statement in statements:
                result = await connection.execute(statement)
                returned.append(result.all() if result.returns_rows else ())
            return returned

        return await self.run(work, writes=True)

    async def write_many(self, statement: Executable, parameters: Sequence[Mapping[str, object]]) -> None:
        """One statement for each set of parameters, all in one transaction."""

        async def work(connection: AsyncConnection) -> None:
            await connection.execute(statement, parameters)

        await self.run(work, writes=True)

    async def run(self, work: Callable[[AsyncConnection], Awaitable[T]], *, writes: bool) -> T:
        """One transaction: committed when ``work`` returns, undone if it raises.

        The first statement of a writer must write, or SQLite may refuse to turn a reader into one.
        ``IntegrityError`` passes through: only the caller knows what it means.
        """
        task = asyncio.create_task(self._write(work) if writes else self._read(work))
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)
        with _translation(self.shown_url):
            return await asyncio.shield(task)

    async def _read(self, work: Callable[[AsyncConnection], Awaitable[T]]) -> T:
        async with self._engine.connect() as connection:
            return await work(connection)

    async def _write(self, work: Callable[[AsyncConnection], Awaitable[T]]) -> T:
        async with self._writers if self.is_sqlite else nullcontext(), self._engine.begin() as connection:
            return await work(connection)


@contextmanager
def _translation(shown_url: str) -> Iterator[None]:
    try:
        yield
    except IntegrityError:
        raise
    except (StatementError, NoConnectionFree, OSError, OverflowError, UnicodeError) as error:
        cause = error.orig if isinstance(error, StatementError) else error
        if _is_about_a_value(error):
            raise UnstorableValue(f"a value cannot be kept in the catalog: {cause}; send another one") from error
        raise CatalogUnavailable(
            f"the catalog {shown_url!r} failed: {cause}. "
            f"Look for a full disk, a missing directory or a stopped database server."
        ) from error


def _is_about_a_value(error: Exception) -> bool:
    if isinstance(error, OverflowError | UnicodeError | DataError):
        return True
    if not isinstance(error, DBAPIError):
        return isinstance(error, StatementError)  # a column refused it before the driver saw it
    # asyncpg has no DB-API errors of its own: a ValueError underneath, or what the server's code says.
    origin = error.orig
    state = getattr(origin, "sqlstate", None) or ""
    return isinstance(getattr(origin, "__cause__", None), ValueError) or state.startswith(_VALUE_STATES)


def _refuse_what_cannot_be_opened(path: Path) -> None:
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


class _Connection(Protocol):
    def cursor(self) -> Any: ...  # Any: a driver's cursor, which has no common type


def _apply_pragmas(connection: _Connection, _record: object) -> None:
    cursor = connection.cursor()
    for pragma in _PRAGMAS:
        cursor.execute(pragma)
    cursor.close()


def _target(url: str) -> URL:
    try:
        parsed = make_url(url)
    except ArgumentError as error:
        raise CatalogUnavailable(f"the catalog's URL cannot be read: {_USE}") from error
    driver = DRIVERS.get(parsed.drivername, parsed.drivername)
    if driver not in DRIVERS.values():
        raise CatalogUnavailable(f"{parsed.drivername!r} is not a database this catalog runs on: {_USE}")
    if parsed.get_backend_name() == "sqlite" and (parsed.database or ":memory:") == ":memory:":
        raise CatalogUnavailable(f"a catalog in memory would be another one for each connection: {_USE}")
    return parsed.set(drivername=driver)
