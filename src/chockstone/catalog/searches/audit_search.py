"""The search in the audit by user, run and event, newest first, a page at a time."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from sqlalchemy import and_, func, or_, select
from sqlalchemy.sql.elements import ColumnElement

from chockstone.catalog import schema as tables
from chockstone.catalog.database.database import Database
from chockstone.catalog.database.rows import RowMapper
from chockstone.catalog.tables.audit import AuditRow

_ROWS: Final = RowMapper(AuditRow, tables.audit)
_AUDIT: Final = tables.audit.c


@dataclass(frozen=True, slots=True)
class AuditCursor:
    """The last entry of the page before."""

    at: datetime
    audit_id: int


@dataclass(frozen=True, slots=True)
class AuditQuery:
    """All conditions must hold. None: no condition."""

    owner: str | None = None  # in whose audit an entry is
    user: str | None = None  # in whose audit an entry is, or who did it
    run_id: str | None = None
    event: str | None = None  # the beginning of its name
    limit: int = 100
    cursor: AuditCursor | None = None


@dataclass(frozen=True, slots=True)
class AuditPage:
    rows: tuple[AuditRow, ...]
    next_cursor: AuditCursor | None  # None: this was the last page


class AuditSearch:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def find(self, query: AuditQuery) -> AuditPage:
        newest_first = (_AUDIT.at.desc(), _AUDIT.audit_id.desc())
        # One row more than the limit shows whether a page follows.
        page = select(*_ROWS.columns).where(*_conditions(query)).order_by(*newest_first).limit(query.limit + 1)
        found = await _ROWS.read(self._database, page)
        rows = found[: query.limit]
        is_last = len(found) <= query.limit or not rows
        return AuditPage(rows, None if is_last else AuditCursor(rows[-1].at, rows[-1].audit_id))


def _conditions(query: AuditQuery) -> list[ColumnElement[bool]]:
    conditions: list[ColumnElement[bool]] = []
    if query.owner is not None:
        conditions.append(_AUDIT.owner == query.owner)
    if query.user is not None:
        conditions.append(or_(_AUDIT.owner == query.user, _AUDIT.details["by"].as_string() == query.user))
    if query.run_id is not None:
        conditions.append(_AUDIT.run_id == query.run_id)
    if query.event is not None:
        conditions.append(func.substr(_AUDIT.event, 1, len(query.event)) == query.event)  # LIKE may ignore case
    if query.cursor is not None:
        at, audit_id = query.cursor.at, query.cursor.audit_id
        conditions.append(or_(_AUDIT.at < at, and_(_AUDIT.at == at, _AUDIT.audit_id < audit_id)))
    return conditions
