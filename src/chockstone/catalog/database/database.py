"""The database: runs transactions, and translates the drivers' errors into the catalog's.

SQLite lets one connection write at a time. Writers of this process queue here, in order; SQLite itself waits for
other processes. A transaction runs to its end even if its caller is cancelled, because a driver that is interrupted
halfway keeps its locks.

A transaction on a PostgreSQL server that does not answer is retried with backoff; see ``retry``.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from sqlalchemy import Executable, event
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError, StatementError
from sqlalchemy.exc import TimeoutError as NoConnectionFree
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from chockstone.catalog.database.postgres import CONNECTIONS, READ_ONLY, Connect, connector, refusal, state_of
from chockstone.catalog.database.retry import CatalogRetry
from chockstone.catalog.database.sqlite import apply_pragmas, refuse_what_cannot_be_opened
from chockstone.catalog.errors import CatalogAway, CatalogUnavailable, UnstorableColumnValue
from chockstone.telemetry import tracing
from chockstone.telemetry.instruments import Instruments
from chockstone.wire.redaction import redact_url

T = TypeVar("T")
AnyRow = Sequence[Any]  # Any: columns are of all types

DRIVERS: Final = {
    "sqlite": "sqlite+aiosqlite",
    "postgres": "postgresql+asyncpg",
    "postgresql": "postgresql+asyncpg",
}
_USE: Final = "use sqlite:///PATH or postgresql://USER@HOST/DATABASE"
_VALUE_STATES: Final = ("22", "54")  # SQLSTATE: data exceptions, limits exceeded
_TO_JSON: Final = partial(json.dumps, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


class Database:
    def __init__(self, engine: AsyncEngine, url: str, instruments: Instruments | None = None) -> None:
        self._engine = engine
        self._url = url
        self._instruments = instruments
        self._writers = asyncio.Lock()
        self._under_way: set[asyncio.Task[Any]] = set()  # Any: tasks of all results

    @classmethod
    def at(cls, url: str, *, is_read_only: bool = False, instruments: Instruments | None = None) -> Database:
        """Does not connect yet. Raises CatalogUnavailable for a SQLite file that cannot be opened.

        ``is_read_only``: PostgreSQL refuses all writes. ``instruments`` measure each transaction.
        """
        if _driver(url) == DRIVERS["sqlite"]:
            return cls(_sqlite_engine(url), url, instruments)
        return cls(_postgres_engine(connector(url, is_read_only=is_read_only)), url, instruments)

    @property
    def is_sqlite(self) -> bool:
        return self._engine.dialect.name == "sqlite"

    @property
    def path(self) -> Path:
        """The SQLite file."""
        return Path(self._engine.url.database or "")

    @property
    def is_absent(self) -> bool:
        """Whether the SQLite file does not exist. A query would create it."""
        return self.is_sqlite and not self.path.exists()

    @property
    def url(self) -> str:
        """With its password: not for messages."""
        return self._url

    @property
    def shown_url(self) -> str:
        """The URL without its password, for messages."""
        return redact_url(self._url)

    def connector(self, **settings: str) -> Connect:
        """Makes PostgreSQL connections outside the pool, for the caller alone."""
        return connector(self._url, settings=settings)

    @asynccontextmanager
    async def unhurried(self) -> AsyncIterator[Database]:
        """The same database without the time limit on statements."""
        if self.is_sqlite:
            yield self
            return
        database = Database(_postgres_engine(connector(self._url, is_hurried=False)), self._url)
        try:
            yield database
        finally:
            await database.close()

    async def close(self) -> None:
        """Waits for running transactions."""
        await asyncio.gather(*self._under_way, return_exceptions=True)
        await self._engine.dispose()

    async def read(self, query: Executable) -> Sequence[AnyRow]:
        async def work(connection: AsyncConnection) -> Sequence[AnyRow]:
            return (await connection.execute(query)).all()

        return await self.run(work, writes=False)

    async def write(self, *statements: Executable) -> list[Sequence[AnyRow]]:
        """Run all statements in one transaction. Returns the rows of each."""

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

        The first statement of a writer must write: SQLite may refuse to turn a reader into a writer. ``work`` is
        run again if the database did not answer, so it must have no other effect. ``IntegrityError`` is not
        translated: only the caller knows what it means.
        """
        retry, started = CatalogRetry(), time.perf_counter()
        try:
            with tracing.span("catalog.write" if writes else "catalog.read"):
                while True:
                    task = asyncio.create_task(self._write(work) if writes else self._read(work))
                    self._under_way.add(task)
                    task.add_done_callback(self._under_way.discard)
                    try:
                        return await asyncio.shield(task)
                    except CatalogAway as error:
                        await retry.wait(error)
        finally:
            retry.end()
            if self._instruments is not None:
                self._instruments.catalog_answered(writes=writes, seconds=time.perf_counter() - started)

    async def _read(self, work: Callable[[AsyncConnection], Awaitable[T]]) -> T:
        async with self._translation(), self._engine.connect() as connection:
            return await work(connection)

    async def _write(self, work: Callable[[AsyncConnection], Awaitable[T]]) -> T:
        async with self._writers if self.is_sqlite else nullcontext(), self._translation():
            async with self._engine.connect() as connection:
                done = await work(connection)
                try:
                    await connection.commit()
                except (DBAPIError, OSError) as error:
                    if self.is_sqlite or not _is_cut(error):
                        raise
                    why = str(refusal(_origin(error), self._url, is_cut=True))
                    raise CatalogAway(why, may_be_done=True) from error
            return done

    @asynccontextmanager
    async def _translation(self) -> AsyncIterator[None]:
        try:
            yield
        except IntegrityError:
            raise
        except (StatementError, NoConnectionFree, OSError, OverflowError, UnicodeError) as error:
            origin = _origin(error)
            if _is_about_a_value(error):
                raise UnstorableColumnValue(
                    f"a value cannot be kept in the catalog: {origin}; send another one"
                ) from error
            if self._instruments is not None:
                self._instruments.catalog_failed()
            if self.is_sqlite:
                raise CatalogUnavailable(
                    f"the catalog {self.shown_url!r} failed: {origin}. Look for a full disk or a missing directory."
                ) from error
            if state_of(origin) == READ_ONLY:
                await self._engine.dispose()  # the former primary may be a standby now: connect again
            raise refusal(origin, self._url, is_cut=_is_cut(error)) from error


def _origin(error: BaseException) -> BaseException:
    """The driver's own error, if there is one."""
    orig = error.orig if isinstance(error, StatementError) else None
    return error if orig is None else orig.__cause__ or orig


def _is_cut(error: Exception) -> bool:
    """Whether the connection ended before the server answered, or no connection was free."""
    return isinstance(error, OSError | NoConnectionFree) or (
        isinstance(error, DBAPIError) and error.connection_invalidated
    )


def _is_about_a_value(error: Exception) -> bool:
    if isinstance(error, OverflowError | UnicodeError | DataError):
        return True
    if not isinstance(error, DBAPIError):
        return isinstance(error, StatementError)  # a column refused it before the driver saw it
    # asyncpg has no DB-API errors: it raises ValueError, or has the server's SQLSTATE.
    origin = error.orig
    return isinstance(getattr(origin, "__cause__", None), ValueError) or state_of(origin).startswith(_VALUE_STATES)


def _sqlite_engine(url: str) -> AsyncEngine:
    target = make_url(url).set(drivername=DRIVERS["sqlite"])
    refuse_what_cannot_be_opened(Path(target.database or ""))
    engine = create_async_engine(target, json_serializer=_TO_JSON, pool_size=CONNECTIONS, max_overflow=0)
    event.listen(engine.sync_engine, "connect", apply_pragmas)
    return engine


def _postgres_engine(connect: Connect) -> AsyncEngine:
    return create_async_engine(
        "postgresql+asyncpg://", async_creator=connect, json_serializer=_TO_JSON, pool_size=CONNECTIONS, max_overflow=0
    )


def sqlite_path(url: str) -> Path | None:
    """The SQLite file of the URL; None for PostgreSQL."""
    return Path(make_url(url).database or "") if _driver(url) == DRIVERS["sqlite"] else None


def _driver(url: str) -> str:
    """Raises CatalogUnavailable for a database that the catalog does not support."""
    scheme, separator, rest = url.partition("://")
    if not separator:
        raise CatalogUnavailable(f"the catalog's URL cannot be read: {_USE}")
    driver = DRIVERS.get(scheme, scheme)
    if driver not in DRIVERS.values():
        raise CatalogUnavailable(f"{scheme!r} is not a database this catalog runs on: {_USE}")
    if driver == DRIVERS["sqlite"] and rest.removeprefix("/") in ("", ":memory:"):
        raise CatalogUnavailable(f"a catalog in memory would be another one for each connection: {_USE}")
    return driver
