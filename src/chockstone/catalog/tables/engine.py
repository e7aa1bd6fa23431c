"""The engine's own tables: which data directory its journals are in, and how far each journal was acknowledged.

The journal marks are kept apart from the journals, so that a journal that lost its end is noticed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from sqlalchemy import Connection, delete, insert, inspect, select
from sqlalchemy.ext.asyncio import AsyncConnection

from chockstone.catalog import schema as tables
from chockstone.catalog.database.database import Database
from chockstone.catalog.database.rows import RowMapper, upsert


@dataclass(frozen=True, slots=True)
class EngineRow:
    engine_id: str  # also in the data directory
    host: str  # host and data are shown to people only
    data: str
    bound_at: datetime


_ENGINE_ROWS: Final = RowMapper(EngineRow, tables.engine)


class EngineTable:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def get(self) -> EngineRow | None:
        """None: no engine is bound. Works on a catalog of any version, and where there is no catalog yet."""

        async def look(connection: AsyncConnection) -> EngineRow | None:
            return await connection.run_sync(_find)

        if self._database.is_absent:
            return None
        return await self._database.run(look, writes=False)

    async def ping(self) -> None:
        """Read a row. Raises CatalogError when the database does not answer."""
        await self._database.read(select(tables.engine.c.engine_id).limit(1))

    async def bind(self, engine_id: str, *, host: str, data: str, now: datetime) -> EngineRow:
        """Bind the catalog to this engine. The caller must hold the engine's lock."""
        creation = insert(tables.engine).values(engine_id=engine_id, host=host, data=data, bound_at=now)
        _, [bound] = await self._database.write(delete(tables.engine), creation.returning(*_ENGINE_ROWS.columns))
        return _ENGINE_ROWS.row(bound)


def _find(connection: Connection) -> EngineRow | None:
    """Selects only columns that the table had in every version."""
    if not inspect(connection).has_table(tables.engine.name):
        return None
    return _ENGINE_ROWS.only(connection.execute(select(*_ENGINE_ROWS.columns)).all())


@dataclass(frozen=True, slots=True)
class JournalMarkRow:
    run_id: str
    birth: str  # of the run: a later run with the same id has another birth
    sequence: int  # journal sequence of the last acknowledged operation
    operations: int  # acknowledged since the run was created


_MARK_ROWS: Final = RowMapper(JournalMarkRow, tables.journal_marks)
_MARKS: Final = tables.journal_marks.c


class JournalMarkTable:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def get(self, run_id: str) -> JournalMarkRow | None:
        return await _MARK_ROWS.find(self._database, _MARKS.run_id == run_id)

    async def put_many(self, rows: Mapping[str, JournalMarkRow]) -> None:
        """Replace the marks of these runs, in one transaction."""
        values = [
            {"run_id": row.run_id, "birth": row.birth, "sequence": row.sequence, "operations": row.operations}
            for _, row in sorted(rows.items())
        ]
        await upsert(self._database, tables.journal_marks, values, replace=("birth", "sequence", "operations"))

    async def remove(self, run_id: str) -> None:
        """For a run that has ended."""
        await self._database.write(delete(tables.journal_marks).where(_MARKS.run_id == run_id))
