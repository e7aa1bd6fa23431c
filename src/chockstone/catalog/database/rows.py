"""Rows: maps one table's rows to frozen dataclasses whose fields are named like the columns.

Has the statements that every table needs; each is one transaction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from sqlalchemy import Column, FromClause, Select, Table, bindparam, func, insert, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import IntegrityError
from sqlalchemy.sql.elements import ColumnElement

from chockstone.catalog.database.database import AnyRow, Database
from chockstone.catalog.errors import UnstorableColumnValue

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

R = TypeVar("R", bound="DataclassInstance")
P = TypeVar("P")

JsonObject = Mapping[str, Any]  # Any: whatever JSON holds


@dataclass(frozen=True, slots=True)
class Page(Generic[P]):
    rows: tuple[P, ...]
    total_count: int  # of all pages


class RowMapper(Generic[R]):
    def __init__(self, row_class: type[R], table: Table) -> None:
        self._row_class = row_class
        self._table = table
        self.columns = self.columns_of(table)

    def columns_of(self, source: FromClause) -> tuple[ColumnElement[Any], ...]:
        """The columns of the fields, in the table or in a subquery of it."""
        return tuple(source.c[field.name] for field in fields(self._row_class))

    def row(self, found: AnyRow) -> R:
        """The first columns of ``found`` must be the fields, in order; more may follow."""
        return self._row_class(*found[: len(self.columns)])

    def rows(self, found: Sequence[AnyRow]) -> tuple[R, ...]:
        return tuple(self.row(each) for each in found)

    def only(self, found: Sequence[AnyRow]) -> R | None:
        """The row that a unique key finds, or None."""
        return self.row(found[0]) if found else None

    async def create_once(self, database: Database, **values: object) -> R | None:
        """Insert the row, or return the existing row with its primary key, whatever its other values.

        Of several callers at once, one inserts. None: a row that it refers to is missing.
        """
        creation = insert(self._table).values(**values).returning(*self.columns)
        try:
            [[made]] = await database.write(creation)
        except IntegrityError:
            return await self.find(database, *(column == values[column.name] for column in self._table.primary_key))
        return self.row(made)

    async def find(self, database: Database, *where: ColumnElement[bool]) -> R | None:
        try:
            return self.only(await database.read(select(*self.columns).where(*where)))
        except UnstorableColumnValue:
            if database.is_sqlite:
                raise
            return None  # PostgreSQL refuses text with a NUL even in a query

    async def read(self, database: Database, query: Select[Any]) -> tuple[R, ...]:
        """``query`` must select ``columns``."""
        return self.rows(await database.read(query))

    async def read_page(
        self,
        database: Database,
        *where: ColumnElement[bool],
        order_by: tuple[ColumnElement[Any], ...],
        limit: int,
        offset: int,
    ) -> Page[R]:
        # Counted apart: a window function would make the database read every row in full.
        count = select(func.count()).select_from(self._table).where(*where)
        page = select(*self.columns, count.scalar_subquery().label("total_count")).where(*where)
        found = await database.read(page.order_by(*order_by).limit(limit).offset(offset))
        if found:
            return Page(self.rows(found), found[0][-1])
        [[total_count]] = await database.read(count)
        return Page((), total_count)  # past the last page

    async def read_newest_of_each(
        self, database: Database, group: str, newest: str, *where: ColumnElement[bool], count: int, limit: int
    ) -> tuple[R, ...]:
        """Of the rows with one value of the column ``group`` the ``count`` newest, and the ``limit`` newest of these.

        Newest first, by the column ``newest``. So the rows of one group cannot crowd out those of another.
        """
        keys = self._table.primary_key
        order = (self._table.c[newest].desc(), *keys)
        place = func.row_number().over(partition_by=self._table.c[group], order_by=order)
        ranked = select(*self.columns, place.label("place_in_group")).where(*where).subquery("ranked")
        query = select(*self.columns_of(ranked)).where(ranked.c.place_in_group <= count)
        return await self.read(
            database, query.order_by(ranked.c[newest].desc(), *(ranked.c[key.name] for key in keys)).limit(limit)
        )

    async def change(self, database: Database, *where: ColumnElement[bool], **values: object) -> R | None:
        """The row as changed; None if there is none."""
        change = update(self._table).where(*where).values(**values).returning(*self.columns)
        [changed] = await database.write(change)
        return self.only(changed)

    async def touch_many(
        self, database: Database, key: Column[str], column: Column[datetime], moments: Mapping[str, datetime]
    ) -> None:
        """Set ``column`` to a later time for each key, never to an earlier one; unknown keys are skipped."""
        if not moments:
            return
        change = (
            update(self._table)
            .where(key == bindparam("touched"), column < bindparam("moment"))
            .values({column: bindparam("moment")})
        )
        # Always in the same order, so that two transactions do not deadlock.
        touched = [{"touched": row_key, "moment": moments[row_key]} for row_key in sorted(moments)]
        await database.write_many(change, touched)


def upsertion(
    table: Table, *, is_sqlite: bool, replace: Sequence[str] = (), add: Sequence[str] = ()
) -> sqlite.Insert | postgresql.Insert:
    """A statement that inserts a row. Of an existing row, ``replace`` columns are set, ``add`` ones summed."""
    insertion = sqlite.insert(table) if is_sqlite else postgresql.insert(table)
    if not (replace or add):
        return insertion.on_conflict_do_nothing(index_elements=list(table.primary_key))
    changes: dict[str, ColumnElement[Any]] = {column: insertion.excluded[column] for column in replace}
    changes |= {column: table.c[column] + insertion.excluded[column] for column in add}
    return insertion.on_conflict_do_update(index_elements=list(table.primary_key), set_=changes)


async def upsert(
    database: Database,
    table: Table,
    rows: Sequence[Mapping[str, object]],
    *,
    replace: Sequence[str] = (),
    add: Sequence[str] = (),
) -> None:
    """Insert all rows in one transaction, as ``upsertion`` does."""
    if rows:
        await database.write_many(upsertion(table, is_sqlite=database.is_sqlite, replace=replace, add=add), rows)
