"""The search for checkpoints by owner, project, metadata and more, in several orders, a page at a time.

A cursor names the last checkpoint of the page before, so that pages stay right while checkpoints come and go.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, Literal

from sqlalchemy import Text, and_, column, exists, func, literal, or_, select
from sqlalchemy.sql.elements import ColumnElement

from chockstone.catalog import schema as tables
from chockstone.catalog.database.database import Database
from chockstone.catalog.tables.checkpoint_rows import CHECKPOINT_ROWS, CheckpointKind, CheckpointRow, Usage, is_visible

CheckpointOrder = Literal["newest", "oldest", "largest", "smallest", "name", "step", "expiry"]

_CHECKPOINTS: Final = tables.checkpoints.c
_NEVER: Final = datetime(9999, 1, 1, tzinfo=UTC)  # checkpoints that do not expire come last


@dataclass(frozen=True, slots=True)
class CheckpointCursor:
    """The last checkpoint of the page before. ``value``: what the order compares."""

    value: str | int | datetime
    save_id: int


@dataclass(frozen=True, slots=True)
class CheckpointQuery:
    """All conditions must hold. None: no condition."""

    owner: str | None = None
    reader: str | None = None  # a user who owns them, or for whom they are published
    project_ids: Collection[str] | None = None
    user_metadata: Mapping[str, str] = field(default_factory=dict)  # each entry must be equal
    run_id: str | None = None
    kinds: Collection[CheckpointKind] | None = None
    state: Literal["ready", "damaged"] | None = None
    public: bool | None = None
    expires: bool | None = None
    words: tuple[str, ...] = ()  # each must occur in the run's id, the name or the base model
    base_models: Collection[str] | None = None
    order: CheckpointOrder = "newest"
    limit: int = 50
    cursor: CheckpointCursor | None = None


@dataclass(frozen=True, slots=True)
class CheckpointPage:
    rows: tuple[CheckpointRow, ...]
    next_cursor: CheckpointCursor | None  # None: this was the last page
    matched: Usage  # of all pages


@dataclass(frozen=True, slots=True)
class _Order:
    column: ColumnElement[Any]  # Any: columns are of several types
    is_descending: bool

    def by(self) -> tuple[ColumnElement[Any], ...]:
        columns = (self.column, _CHECKPOINTS.save_id)
        return tuple(column.desc() if self.is_descending else column.asc() for column in columns)

    def after(self, cursor: CheckpointCursor) -> ColumnElement[bool]:
        value = literal(cursor.value, self.column.type)
        if self.is_descending:
            return or_(self.column < value, and_(self.column == value, _CHECKPOINTS.save_id < cursor.save_id))
        return or_(self.column > value, and_(self.column == value, _CHECKPOINTS.save_id > cursor.save_id))


_STEP: Final = func.coalesce(_CHECKPOINTS.step, -1, type_=_CHECKPOINTS.step.type)
_EXPIRY: Final = func.coalesce(
    _CHECKPOINTS.expires_at, literal(_NEVER, _CHECKPOINTS.expires_at.type), type_=_CHECKPOINTS.expires_at.type
)
_ORDERS: Final[dict[CheckpointOrder, _Order]] = {
    "newest": _Order(_CHECKPOINTS.created_at, is_descending=True),
    "oldest": _Order(_CHECKPOINTS.created_at, is_descending=False),
    "largest": _Order(_CHECKPOINTS.size_bytes, is_descending=True),
    "smallest": _Order(_CHECKPOINTS.size_bytes, is_descending=False),
    "name": _Order(_CHECKPOINTS.name, is_descending=False),
    "step": _Order(_STEP, is_descending=True),
    "expiry": _Order(_EXPIRY, is_descending=False),
}


class CheckpointFinder:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def find(self, query: CheckpointQuery, *, now: datetime) -> CheckpointPage:
        """Checkpoints that are published and not expired."""
        where = _conditions(query, now, is_sqlite=self._database.is_sqlite)
        order = _ORDERS[query.order]
        size = func.coalesce(func.sum(_CHECKPOINTS.size_bytes), 0)
        [[count, size_bytes]] = await self._database.read(select(func.count(), size).where(*where))
        page = select(*CHECKPOINT_ROWS.columns).where(*where)
        if query.cursor is not None:
            page = page.where(order.after(query.cursor))
        # One row more than the limit shows whether a page follows.
        found = await CHECKPOINT_ROWS.read(self._database, page.order_by(*order.by()).limit(query.limit + 1))
        rows = found[: query.limit]
        is_last = len(found) <= query.limit or not rows
        next_cursor = None if is_last else CheckpointCursor(_value(rows[-1], query.order), rows[-1].save_id)
        return CheckpointPage(rows, next_cursor, Usage(count, int(size_bytes)))


def _conditions(query: CheckpointQuery, now: datetime, *, is_sqlite: bool) -> list[ColumnElement[bool]]:
    conditions = [is_visible(now)]
    conditions += [_has_entry(key, value, is_sqlite=is_sqlite) for key, value in query.user_metadata.items()]
    if query.reader is not None:
        conditions.append(or_(_CHECKPOINTS.owner == query.reader, _CHECKPOINTS.public))
    if query.project_ids is not None:
        in_a_project = tables.runs.c.project_id.in_(query.project_ids)
        conditions.append(exists().where(tables.runs.c.run_id == _CHECKPOINTS.run_id, in_a_project))
    if query.owner is not None:
        conditions.append(_CHECKPOINTS.owner == query.owner)
    if query.run_id is not None:
        conditions.append(_CHECKPOINTS.run_id == query.run_id)
    if query.kinds is not None:
        conditions.append(_CHECKPOINTS.kind.in_(query.kinds))
    if query.base_models is not None:
        conditions.append(_CHECKPOINTS.base_model.in_(query.base_models))
    if query.state is not None:
        conditions.append(_CHECKPOINTS.state == query.state)
    if query.public is not None:
        conditions.append(_CHECKPOINTS.public.is_(query.public))
    if query.expires is not None:
        never = _CHECKPOINTS.expires_at.is_(None)
        conditions.append(~never if query.expires else never)
    return conditions + [_contains(word) for word in query.words]


def _has_entry(key: str, value: str, *, is_sqlite: bool) -> ColumnElement[bool]:
    """Reads the entries as rows: a JSON path cannot name every key."""
    rows = func.json_each if is_sqlite else func.json_each_text
    entries = rows(_CHECKPOINTS.user_metadata).table_valued(column("key", Text), column("value", Text))
    return select(literal(1)).select_from(entries).where(entries.c.key == key, entries.c.value == value).exists()


def _contains(word: str) -> ColumnElement[bool]:
    columns = (_CHECKPOINTS.run_id, _CHECKPOINTS.name, _CHECKPOINTS.base_model)
    return or_(*(func.lower(column).contains(word.lower(), autoescape=True) for column in columns))


def _value(row: CheckpointRow, order: CheckpointOrder) -> str | int | datetime:
    match order:
        case "newest" | "oldest":
            return row.created_at
        case "largest" | "smallest":
            return row.size_bytes
        case "name":
            return row.name
        case "step":
            return -1 if row.step is None else row.step
        case "expiry":
            return _NEVER if row.expires_at is None else row.expires_at
