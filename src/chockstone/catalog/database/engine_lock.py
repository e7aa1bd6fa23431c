"""The engine's lock: at most one server's engine runs on a catalog.

On PostgreSQL it is an advisory lock of a connection, which PostgreSQL frees when the connection ends. A server that
loses the connection takes the lock again; a server that finds it taken must stop. For SQLite the lock is a file
beside the database.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final

from chockstone.catalog.database.database import Database
from chockstone.catalog.database.postgres import refusal
from chockstone.catalog.errors import CatalogInUse, CatalogUnavailable

_NUMBER: Final = 0x63686F63  # with the hash of the schema: one lock for each catalog of a PostgreSQL server
# Without a schema there is nothing to lock; creating the tables will fail and say so.
_SCHEMA: Final = "hashtext(coalesce(current_schema(), ''))"
_TAKE: Final = f"SELECT pg_try_advisory_lock({_NUMBER}, {_SCHEMA})"
_HOLDER: Final = f"""
    SELECT pid, application_name, coalesce(host(client_addr), 'its own machine') FROM pg_stat_activity WHERE pid IN (
        SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted
        AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
        AND classid = {_NUMBER} AND objid = ({_SCHEMA}::bigint & 4294967295)::oid)
"""  # noqa: S608  # only our own number is put in
_CHECK_SECONDS: Final = 0.2
_LOOK_SECONDS: Final = 5.0  # between two checks of the connection
_GIVE_UP_SECONDS: Final = 30.0  # while another server has the lock
# PostgreSQL ends the connection of a machine that died after a minute.
_SESSION: Final = {"tcp_keepalives_idle": "30", "tcp_keepalives_interval": "10", "tcp_keepalives_count": "3"}
_SHOWN: Final = 60  # characters that PostgreSQL keeps of a name


class EngineLock:
    """Made by ``take``; ``keep`` must run until ``release``."""

    def __init__(self, database: Database, holder: str) -> None:
        self._database = database
        self._connect = None if database.is_sqlite else database.connector(application_name=holder[:_SHOWN], **_SESSION)
        self._connection: Any = None  # Any: asyncpg has no types
        self._session = 0  # server process of the connection that had the lock last
        self._file: int | None = None

    @classmethod
    async def take(
        cls, database: Database, holder: str, *, wait_seconds: float = 0.0, on_wait: Callable[[], None] = lambda: None
    ) -> EngineLock:
        """Waits up to ``wait_seconds`` for another server's lock. ``holder`` describes this server in a few words.

        Raises CatalogInUse, CatalogUnavailable.
        """
        lock = cls(database, holder)
        deadline_monotonic = time.monotonic() + wait_seconds
        try:
            if await lock._try():
                return lock
            if wait_seconds:
                on_wait()
            while time.monotonic() < deadline_monotonic:
                await asyncio.sleep(_CHECK_SECONDS)
                if await lock._try():
                    return lock
            raise CatalogInUse(
                f"the catalog {database.shown_url!r} is in use by {await lock._holder()}: one engine at a time runs "
                "on a catalog. Stop that one, or give this one a database of its own"
            )
        except BaseException:
            await lock.release()
            raise

    async def keep(self, on_lost: Callable[[str], None]) -> None:
        """Take the lock again when its connection was cut. Calls ``on_lost`` once, if another server took it."""
        if self._database.is_sqlite:
            return
        taken_since: float | None = None
        while True:
            await asyncio.sleep(_LOOK_SECONDS if taken_since is None else _CHECK_SECONDS)
            with suppress(CatalogUnavailable):  # it does not answer: the calls that need it report that
                if await self._is_held() or await self._try():
                    taken_since = None
                    continue
                taken_since = taken_since or time.monotonic()
                if time.monotonic() - taken_since > _GIVE_UP_SECONDS:
                    on_lost(f"the catalog is in use by {await self._holder()}, which took it while it was out of reach")
                    return

    async def release(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None
        if self._connection is not None:
            await _ended(self._connection)
            self._connection = None

    async def _try(self) -> bool:
        if self._database.is_sqlite:
            return await asyncio.to_thread(self._lock_file)
        if self._connection is None or self._connection.is_closed():
            self._connection = await self._connect()  # type: ignore[misc]  # there is one, as this is not SQLite
        if await self._ask(self._connection.fetchval(_TAKE)):
            self._session = self._connection.get_server_pid()
            return True
        if self._session and self._session in [row[0] for row in await self._ask(self._connection.fetch(_HOLDER))]:
            # Our own former connection, whose end the server has not noticed.
            await self._ask(self._connection.execute(f"SELECT pg_terminate_backend({self._session})"))
        return False

    async def _is_held(self) -> bool:
        if self._connection is None or self._connection.is_closed():
            return False
        if self._connection.get_server_pid() != self._session:
            return False  # a new connection, without the lock
        await self._ask(self._connection.execute("SELECT 1"))
        return True

    async def _holder(self) -> str:
        if self._database.is_sqlite:
            return "another server"
        rows = await self._ask(self._connection.fetch(_HOLDER))
        return " and ".join(f"{name!r} on {address}" for _, name, address in rows) or "another server"

    async def _ask(self, question: Awaitable[Any]) -> Any:  # Any: as above
        try:
            return await question
        except Exception as error:  # after any error this connection is unusable
            await _ended(self._connection)
            raise refusal(error, self._database.shown_url, is_cut=True) from error

    def _lock_file(self) -> bool:
        if self._file is None:
            path = self._database.path
            self._file = os.open(path.with_name(f"{path.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


async def _ended(connection: Any) -> None:  # Any: as above
    """Close the connection cleanly if that is still possible."""
    try:
        await connection.close(timeout=2)
    except Exception:  # noqa: BLE001  # it was cut already
        connection.terminate()
