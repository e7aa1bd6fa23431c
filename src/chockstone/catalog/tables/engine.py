"""The engine's row: which data directory the journals of this catalog's runs are in."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from sqlalchemy import Connection, delete, insert, inspect, select
from sqlalchemy.ext.asyncio import AsyncConnection

from chockstone.catalog import schema as tables
from chockstone.catalog.database.database import Database
from chockstone.catalog.database.rows import RowMapper


@dataclass(frozen=True, slots=True)
class EngineRow:
    engine_id: str  # is kept in the data directory, too
    host: str  # these two are for people
    data: str
    bound_at: datetime


_ROWS: Final = RowMapper(EngineRow, tables.engine)


class EngineTable:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def get(self) -> EngineRow | None:
        """None: nobody's. May be asked of a catalog of any version, and where there is none yet."""

        async def look(connection: AsyncConnection) -> EngineRow | None:
            return await connection.run_sync(_find)

        if self._database.is_absent:
            return None
        return await self._database.run(look, writes=False)

    async def bind(self, engine_id: str, *, host: str, data: str, now: datetime) -> EngineRow:
        """From now on the catalog is this engine's. For whoever holds its lock."""
        creation = insert(tables.engine).values(engine_id=engine_id, host=host, data=data, bound_at=now)
        _, [bound] = await self._database.write(delete(tables.engine), creation.returning(*_ROWS.columns))
        return _ROWS.row(bound)


def _find(connection: Connection) -> EngineRow | None:
    """By columns that the table has had since there is one."""
    if not inspect(connection).has_table(tables.engine.name):
        return None
    return _ROWS.only(connection.execute(select(*_ROWS.columns)).all())
