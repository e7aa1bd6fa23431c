"""The catalog: one database, and a way in for each noun."""

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
from chockstone.catalog.tables.audit import AuditTable
from chockstone.catalog.tables.checkpoints import CheckpointTable
from chockstone.catalog.tables.engine import EngineTable
from chockstone.catalog.tables.journal_marks import JournalMarkTable
from chockstone.catalog.tables.losses import LossTable
from chockstone.catalog.tables.policies import PolicyTable
from chockstone.catalog.tables.recoveries import RecoveryTable
from chockstone.catalog.tables.runs import RunTable
from chockstone.catalog.tables.samplers import SamplerTable
from chockstone.catalog.tables.sessions import SessionTable
from chockstone.catalog.tables.trash import TrashTable
from chockstone.catalog.tables.usage import UsageTable
from chockstone.catalog.tables.users import KeyTable, UserTable

log = logging.getLogger(__name__)
_LOOK_SECONDS: Final = 0.5  # between two looks whether it is ready


class Catalog:
    """Made by ``open``, for the tasks of one event loop. Each call is one transaction.

    What a call returned outlives this process. With SQLite the last moments may be lost with the
    machine's power, though never a part of a transaction.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self.users = UserTable(database)
        self.sessions = SessionTable(database)
        self.runs = RunTable(database)
        self.recoveries = RecoveryTable(database)
        self.journal_marks = JournalMarkTable(database)
        self.checkpoints = CheckpointTable(database)
        self.trash = TrashTable(database)
        self.policies = PolicyTable(database)
        self.samplers = SamplerTable(database)
        self.losses = LossTable(database)
        self.keys = KeyTable(database)
        self.audit = AuditTable(database)
        self.usage = UsageTable(database)
        self.engine = EngineTable(database)

    @classmethod
    async def open(cls, url: str, *, may_migrate: bool = True) -> Catalog:
        """Create or migrate the database as needed. ``sqlite:///PATH`` wants its directory to exist.

        An older one may be in use by an older server: only who keeps engines off it may migrate it. Others have
        CatalogNotReady raised.
        """
        catalog = await cls.reach(url)
        try:
            await catalog.bring_up_to_date(may_migrate=may_migrate)
        except BaseException:
            await catalog.close()
            raise
        return catalog

    @classmethod
    async def reach(cls, url: str, *, wait_seconds: float = 0.0) -> Catalog:
        """As it is, or is not yet: before ``bring_up_to_date`` nothing but ``lock_engine`` and ``engine.get`` works.

        A database server that is away is waited for, ``wait_seconds`` at most.
        """
        database = Database.at(url)
        try:
            with _waiting(wait_seconds):
                await version_of(database)
        except BaseException:
            await database.close()
            raise
        return cls(database)

    @classmethod
    async def look_into(cls, url: str, *, wait_seconds: float = 0.0) -> Catalog:
        """As it is: nothing is made or migrated, and PostgreSQL is told to refuse all writes.

        One that is away, or that no server of this version has made or migrated yet, is waited for, ``wait_seconds``
        at most. Raises CatalogError.
        """
        database = Database.at(url, is_read_only=True)
        try:
            with _waiting(wait_seconds):
                await _until_ready(database, wait_seconds)
        except BaseException:
            await database.close()
            raise
        return cls(database)

    @staticmethod
    async def exists(url: str, *, wait_seconds: float = 0.0) -> bool:
        """Whether it was ever a catalog, of whatever version. Raises CatalogUnavailable when nobody can tell."""
        if (path := sqlite_path(url)) is not None:
            return path.exists()  # looking into it might make one
        database = Database.at(url)
        try:
            with _waiting(wait_seconds):
                return await version_of(database) is not None
        finally:
            await database.close()

    @property
    def shown_url(self) -> str:
        """For messages: without its password."""
        return self._database.shown_url

    @property
    def path(self) -> Path | None:
        """Of the SQLite file; None: it is none."""
        return self._database.path if self._database.is_sqlite else None

    async def is_new(self) -> bool:
        """Whether no tables were made yet. May be asked of one that was only reached."""
        return await version_of(self._database) is None

    async def bring_up_to_date(self, *, may_migrate: bool = True) -> None:
        """As ``open`` does, for one that was reached."""
        await bring_up_to_date(self._database, may_migrate=may_migrate)

    async def lock_engine(
        self, holder: str, *, wait_seconds: float = 0.0, on_wait: Callable[[], None] = lambda: None
    ) -> EngineLock:
        """Keep other engines off this catalog, see there."""
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
    told = False
    while True:
        try:
            return await require_this_version(database)
        except CatalogNotReady as error:
            if time.monotonic() >= deadline_monotonic:
                raise
            if not told:
                told = True
                log.warning("waiting for the catalog: %s", error)
        await asyncio.sleep(_LOOK_SECONDS)


def _waiting(seconds: float) -> AbstractContextManager[None]:
    if not seconds:
        return nullcontext()
    deadline_monotonic = time.monotonic() + seconds
    told = False

    def tell(why: str | None) -> None:
        nonlocal told
        if why is not None and not told:
            told = True
            log.warning("waiting for the catalog: %s", why)

    return waiting_for_catalog(is_over=lambda: time.monotonic() >= deadline_monotonic, on_wait=tell)
