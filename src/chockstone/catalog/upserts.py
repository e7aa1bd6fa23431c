"""Upserts: rows that are inserted, or change the ones that have their primary key.

Both databases know ``ON CONFLICT DO UPDATE``; SQLAlchemy has it once for each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Table
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.sql.elements import ColumnElement

from chockstone.catalog.database import Database


async def upsert(
    database: Database,
    table: Table,
    rows: Sequence[Mapping[str, object]],
    *,
    replace: Sequence[str] = (),
    add: Sequence[str] = (),
) -> None:
    """All in one transaction. Where a row is there already, ``replace`` columns are set and ``add`` ones summed."""
    if not rows:
        return
    insertion = sqlite.insert(table) if database.is_sqlite else postgresql.insert(table)
    changes: dict[str, ColumnElement[Any]] = {column: insertion.excluded[column] for column in replace}
    changes |= {column: table.c[column] + insertion.excluded[column] for column in add}
    await database.write_many(
        insertion.on_conflict_do_update(index_elements=list(table.primary_key), set_=changes), rows
    )
