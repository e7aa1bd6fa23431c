"""Databases of earlier versions of the catalog."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from alembic import command
from alembic.config import Config
from sqlalchemy import Connection

from chockstone.catalog.database import upgrade
from chockstone.catalog.database.database import Database

T = TypeVar("T")


async def migrated(url: str, version: str, work: Callable[[Connection], T]) -> T:
    """What ``work`` returns, in one transaction on a database that has been brought to this version."""

    def migrate(connection: Connection) -> T:
        config = Config()
        config.set_main_option("script_location", str(upgrade.MIGRATIONS))
        config.attributes["connection"] = connection
        command.upgrade(config, version)
        return work(connection)

    database = Database.at(url)
    try:
        return await database.run(lambda connection: connection.run_sync(migrate), writes=True)
    finally:
        await database.close()
