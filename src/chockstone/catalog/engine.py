"""The engine's row: which data directory the journals of this catalog's runs are in."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from sqlalchemy import delete, insert

from chockstone.catalog import tables
from chockstone.catalog.database import Database
from chockstone.catalog.rows import Rows


@dataclass(frozen=True, slots=True)
class EngineRow:
    engine_id: str  # is kept in the data directory, too
    host: str  # these two are for people
    data: str
    bound_at: datetime


_ROWS: Final = Rows(EngineRow, tables.engine)


class Engine:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def get(self) -> EngineRow | None:
        return await _ROWS.find(self._database)

    async def bind(self, engine_id: str, *, host: str, data: str, now: datetime) -> EngineRow:
        """From now on the catalog is this engine's. For whoever holds its lock."""
        creation = insert(tables.engine).values(engine_id=engine_id, host=host, data=data, bound_at=now)
        _, [bound] = await self._database.write(delete(tables.engine), creation.returning(*_ROWS.columns))
        return _ROWS.row(bound)
