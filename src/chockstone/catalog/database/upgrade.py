"""Upgrade: creates this version's tables in an empty database, and migrates an older catalog.

A catalog of this version costs one query. Creation and migration are each one transaction, and run once however
many processes open the catalog together. An older catalog may be in use by an older server: only a caller that
holds the engine's lock may migrate it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from sqlalchemy import Column, Connection, MetaData, String, Table, insert, inspect, select
from sqlalchemy.ext.asyncio import AsyncConnection

from chockstone.catalog import schema as tables
from chockstone.catalog.database.database import Database
from chockstone.catalog.errors import CatalogForeign, CatalogNotReady, CatalogTooNew

VERSIONS: Final = (
    "0001",
    "0002",
    "0003",
    "0004",
    "0005",
    "0006",
    "0007",
    "0008",
    "0009",
    "0010",
    "0011",
)  # as in migrations/versions, oldest first; the last is what schema.py says
MIGRATIONS: Final = Path(__file__).parents[1] / "migrations"
VERSION_TABLE: Final = Table("alembic_version", MetaData(), Column("version_num", String(32), primary_key=True))
_LOCK_NUMBER: Final = 0x63686F636B  # arbitrary; no other program should lock it in the same PostgreSQL


async def bring_up_to_date(database: Database, *, may_migrate: bool = True) -> None:
    """``may_migrate`` False: create tables, but raise CatalogNotReady for an older catalog. Raises CatalogError."""

    async def work(connection: AsyncConnection) -> None:
        lock = "BEGIN IMMEDIATE" if database.is_sqlite else f"SELECT pg_advisory_xact_lock({_LOCK_NUMBER})"
        await connection.exec_driver_sql(lock)
        await connection.run_sync(_bring_up_to_date, shown_url=database.shown_url, may_migrate=may_migrate)

    if await version_of(database) != VERSIONS[-1]:
        async with database.unhurried() as unhurried:
            await unhurried.run(work, writes=True)


async def version_of(database: Database) -> str | None:
    """None: not a catalog. Empty: a catalog without any migration."""

    async def look(connection: AsyncConnection) -> str | None:
        return await connection.run_sync(_version)

    if database.is_absent:
        return None
    return await database.run(look, writes=False)


async def require_this_version(database: Database) -> None:
    """Changes nothing. Raises CatalogError."""
    version = await version_of(database)
    if version is None:
        raise CatalogNotReady(f"{database.shown_url!r} is no catalog: no server has used it yet")
    if version and version not in VERSIONS:
        raise _too_new(version, database.shown_url)
    if version != VERSIONS[-1]:
        raise _older(version, database.shown_url)


def _bring_up_to_date(connection: Connection, *, shown_url: str, may_migrate: bool) -> None:
    version = _version(connection)
    if version == VERSIONS[-1]:
        return  # another process has just done it
    if version is None:
        _refuse_foreign_tables(connection, shown_url)
        _create(connection)
    elif version and version not in VERSIONS:
        raise _too_new(version, shown_url)
    elif not may_migrate:
        raise _older(version, shown_url)
    else:
        _migrate(connection)


def _too_new(version: str, shown_url: str) -> CatalogTooNew:
    return CatalogTooNew(
        f"the catalog {shown_url!r} is at version {version!r}, which this program does not know: it knows "
        f"{VERSIONS[0]!r} to {VERSIONS[-1]!r}. Run the newer program that made it, or give another database."
    )


def _older(version: str, shown_url: str) -> CatalogNotReady:
    return CatalogNotReady(
        f"the catalog {shown_url!r} is of an older version, {version!r}: it is brought up to date when a server of "
        "this version starts on it"
    )


def _version(connection: Connection) -> str | None:
    if not inspect(connection).has_table(VERSION_TABLE.name):
        return None
    return ", ".join(connection.execute(select(VERSION_TABLE.c.version_num)).scalars())


def _refuse_foreign_tables(connection: Connection, shown_url: str) -> None:
    clashes = sorted(set(inspect(connection).get_table_names()) & set(tables.metadata.tables))
    if clashes:
        raise CatalogForeign(
            f"{shown_url!r} is no catalog of this program but has tables of the same names: {', '.join(clashes)}. "
            f"Give a database of its own."
        )


def _create(connection: Connection) -> None:
    tables.metadata.create_all(connection)
    VERSION_TABLE.create(connection)
    connection.execute(insert(VERSION_TABLE).values(version_num=VERSIONS[-1]))


def _migrate(connection: Connection) -> None:
    from alembic import command  # late: slow to import, and rarely needed
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.attributes["connection"] = connection
    command.upgrade(config, VERSIONS[-1])
