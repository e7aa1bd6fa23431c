"""The catalog: one database, with one attribute for each table."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Final

from chockstone.catalog.database.database import Database, sqlite_path
from chockstone.catalog.database.engine_lock import EngineLock
from chockstone.catalog.database.retry import waiting_for_catalog
from chockstone.catalog.database.upgrade import bring_up_to_date, require_this_version, version_of
from chockstone.catalog.errors import CatalogNotReady
from chockstone.catalog.searches.audit_search import AuditSearch
from chockstone.catalog.searches.checkpoint_search import CheckpointFinder
from chockstone.catalog.searches.run_search import RunSearch
from chockstone.catalog.serving.aliases import AliasTable
from chockstone.catalog.serving.sampler_gaps import SamplerGapTable
from chockstone.catalog.tables.audit import AuditTable
from chockstone.catalog.tables.checkpoint_saves import CheckpointSaves
from chockstone.catalog.tables.checkpoints import CheckpointTable
from chockstone.catalog.tables.engine import EngineTable, JournalMarkTable
from chockstone.catalog.tables.losses import LossTable
from chockstone.catalog.tables.policies import PolicyTable
from chockstone.catalog.tables.recoveries import RecoveryTable
from chockstone.catalog.tables.runs import RunTable
from chockstone.catalog.tables.samplers import SamplerTable
from chockstone.catalog.tables.sessions import SessionTable
from chockstone.catalog.tables.trash import TrashTable
from chockstone.catalog.tables.usage import UsageTable
from chockstone.catalog.tables.users import KeyTable, UserTable
from chockstone.telemetry.instruments import Instruments

log = logging.getLogger(__name__)
_POLL_SECONDS: Final = 0.5  # while the catalog is not ready


class Catalog:
    """Made by ``open``, for the tasks of one event loop. Each call is one transaction.

    On return a call is durable against a crash of this process. With SQLite a power failure may lose the last
    transactions, but never a part of one.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self.users = UserTable(database)
        self.sessions = SessionTable(database)
        self.runs = RunTable(database)
        self.run_search = RunSearch(database)
        self.recoveries = RecoveryTable(database)
        self.journal_marks = JournalMarkTable(database)
        self.checkpoints = CheckpointTable(database)
        self.checkpoint_saves = CheckpointSaves(database)
        self.checkpoint_search = CheckpointFinder(database)
        self.trash = TrashTable(database)
        self.policies = PolicyTable(database)
        self.samplers = SamplerTable(database)
        self.sampler_gaps = SamplerGapTable(database)
        self.aliases = AliasTable(database)
        self.losses = LossTable(database)
        self.keys = KeyTable(database)
        self.audit = AuditTable(database)
        self.audit_search = AuditSearch(database)
        self.usage = UsageTable(database)
        self.engine = EngineTable(database)

    @classmethod
    async def open(cls, url: str, *, may_migrate: bool = True) -> Catalog:
        """Create or migrate the database as needed. ``sqlite:///PATH`` wants its directory to exist.

        An older catalog may be in use by an older server: only a caller that holds the engine's lock may migrate
        it. With ``may_migrate`` False an older catalog raises CatalogNotReady.
        """
        catalog = await cls.reach(url)
        try:
            await catalog.bring_up_to_date(may_migrate=may_migrate)
        except BaseException:
            await catalog.close()
            raise
        return catalog

    @classmethod
    async def reach(cls, url: str, *, wait_seconds: float = 0.0, instruments: Instruments | None = None) -> Catalog:
        """Connect without creating or migrating. Before ``bring_up_to_date`` only ``lock_engine``
        and ``engine.get`` work.

        Waits up to ``wait_seconds`` for a database server that does not answer. ``instruments`` measure each call.
        """
        database = Database.at(url, instruments=instruments)
        try:
            with _waiting(wait_seconds):
                await version_of(database)
        except BaseException:
            await database.close()
            raise
        return cls(database)

    @classmethod
    async def look_into(cls, url: str, *, wait_seconds: float = 0.0, instruments: Instruments | None = None) -> Catalog:
        """Open for reading: nothing is created or migrated, and PostgreSQL refuses all writes.

        Waits up to ``wait_seconds`` for a database server that does not answer, and for a server of this version to
        create or migrate the catalog. ``instruments`` measure each call. Raises CatalogError.
        """
        database = Database.at(url, is_read_only=True, instruments=instruments)
        try:
            with _waiting(wait_seconds):
                await _until_ready(database, wait_seconds)
        except BaseException:
            await database.close()
            raise
        return cls(database)

    @staticmethod
    async def exists(url: str, *, wait_seconds: float = 0.0) -> bool:
        """Whether the database is a catalog of any version. Raises CatalogUnavailable when it does not answer."""
        if (path := sqlite_path(url)) is not None:
            return path.exists()  # connecting would create the file
        database = Database.at(url)
        try:
            with _waiting(wait_seconds):
                return await version_of(database) is not None
        finally:
            await database.close()

    async def reader(self) -> Catalog:
        """Another connection to the same database, for reading on the event loop of the caller; see ``look_into``."""
        return await Catalog.look_into(self._database.url)

    @property
    def shown_url(self) -> str:
        """The URL without its password, for messages."""
        return self._database.shown_url

    @property
    def path(self) -> Path | None:
        """The SQLite file; None for PostgreSQL."""
        return self._database.path if self._database.is_sqlite else None

    async def ping(self) -> None:
        """Read a row. Raises CatalogError when the database does not answer."""
        await self.engine.ping()

    async def is_new(self) -> bool:
        """Whether it has no tables yet. Works after ``reach``."""
        return await version_of(self._database) is None

    async def bring_up_to_date(self, *, may_migrate: bool = True) -> None:
        """Create or migrate as ``open`` does, after ``reach``."""
        await bring_up_to_date(self._database, may_migrate=may_migrate)

    async def lock_engine(
        self, holder: str, *, wait_seconds: float = 0.0, on_wait: Callable[[], None] = lambda: None
    ) -> EngineLock:
        """Take the lock that keeps other engines off this catalog; see ``EngineLock``."""
        return await EngineLock.take(self._database, holder, wait_seconds=wait_seconds, on_wait=on_wait)

    async def close(self) -> None:
        """After the last call has returned."""
        await self._database.close()

    async def __aenter__(self) -> Catalog:
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.close()


async def _until_ready(database: Database, seconds: float) -> None:
    deadline_monotonic = time.monotonic() + seconds
    is_logged = False
    while True:
        try:
            return await require_this_version(database)
        except CatalogNotReady as error:
            if time.monotonic() >= deadline_monotonic:
                raise
            if not is_logged:
                is_logged = True
                log.warning("waiting for the catalog reason=%s", error)
        await asyncio.sleep(_POLL_SECONDS)


def _waiting(seconds: float) -> AbstractContextManager[None]:
    if not seconds:
        return nullcontext()
    deadline_monotonic = time.monotonic() + seconds
    is_logged = False

    def log_once(reason: str | None) -> None:
        nonlocal is_logged
        if reason is not None and not is_logged:
            is_logged = True
            log.warning("waiting for the catalog reason=%s", reason)

    return waiting_for_catalog(is_over=lambda: time.monotonic() >= deadline_monotonic, on_wait=log_once)
