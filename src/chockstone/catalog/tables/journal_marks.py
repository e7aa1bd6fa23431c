"""Journal marks: how far the journal of each run was acknowledged, kept apart from the journals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from sqlalchemy import delete, select

from chockstone.catalog import schema as tables
from chockstone.catalog.database.database import Database
from chockstone.catalog.database.rows import RowMapper, upsert


@dataclass(frozen=True, slots=True)
class JournalMarkRow:
    run_id: str
    birth: str  # of the run: a later run with the same id has another one
    sequence: int  # of the last operation that was acknowledged, in the journal
    operations: int  # that were acknowledged since the run was made


_ROWS: Final = RowMapper(JournalMarkRow, tables.journal_marks)
_MARKS: Final = tables.journal_marks.c


class JournalMarkTable:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def get(self, run_id: str) -> JournalMarkRow | None:
        return await _ROWS.find(self._database, _MARKS.run_id == run_id)

    async def put_many(self, rows: Mapping[str, JournalMarkRow]) -> None:
        """Replace the marks of these runs, in one transaction and one order."""
        values = [
            {"run_id": row.run_id, "birth": row.birth, "sequence": row.sequence, "operations": row.operations}
            for _, row in sorted(rows.items())
        ]
        await upsert(self._database, tables.journal_marks, values, replace=("birth", "sequence", "operations"))

    async def list(self) -> tuple[JournalMarkRow, ...]:
        return await _ROWS.read(self._database, select(*_ROWS.columns).order_by(_MARKS.run_id))

    async def remove(self, run_id: str) -> None:
        """The run is over."""
        await self._database.write(delete(tables.journal_marks).where(_MARKS.run_id == run_id))
