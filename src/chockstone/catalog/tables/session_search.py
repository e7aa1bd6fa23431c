"""The session row, and the search for sessions by owner, name, project, metadata and status."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, Literal

from sqlalchemy import BigInteger, Select, and_, cast, exists, false, func, or_, select
from sqlalchemy.sql.elements import ColumnElement

from chockstone.catalog import schema as tables
from chockstone.catalog.database.database import Database
from chockstone.catalog.database.rows import RowMapper
from chockstone.catalog.tables.checkpoint_rows import is_visible

# Clients send the first three; the server sets the others.
FinishReason = Literal["success", "errored", "interrupted", "cancelled", "failed"]


@dataclass(frozen=True, slots=True)
class SessionRow:
    session_id: str
    owner: str
    project_id: str | None
    display_name: str | None
    tags: Sequence[str]
    user_metadata: Mapping[str, str]
    sdk_version: str
    created_at: datetime
    last_heartbeat_at: datetime
    finished_at: datetime | None
    finish_reason: FinishReason | None
    finish_detail: str | None
    idempotency_key: str | None

    @property
    def is_finished(self) -> bool:
        return self.finished_at is not None


SESSION_ROWS: Final = RowMapper(SessionRow, tables.sessions)

_SESSIONS: Final = tables.sessions.c
_CLIENT_REASONS: Final[tuple[FinishReason, ...]] = ("success", "errored", "interrupted")


@dataclass(frozen=True, slots=True)
class StatusFilter:
    status: Literal["active", "cancelled", "failed", "client_finished"]
    reasons: Sequence[FinishReason] | None = None  # of client_finished only; None: any


@dataclass(frozen=True, slots=True)
class SessionCursor:
    """The last session of the page before."""

    last_created_at: datetime
    last_session_id: str


@dataclass(frozen=True, slots=True)
class SessionQuery:
    """All conditions must hold, but ``session_id`` and ``display_name`` are alternatives. None: no condition."""

    owners: Sequence[str] | None = None
    session_id: str | None = None
    display_name: str | None = None  # each of its words must occur, in any case
    project_ids: Sequence[str] | None = None
    user_metadata: Mapping[str, str] = field(default_factory=dict)  # each entry must be equal
    statuses: Sequence[StatusFilter] | None = None  # any of them
    limit: int = 50
    cursor: SessionCursor | None = None


@dataclass(frozen=True, slots=True)
class SessionSummaryRow:
    session: SessionRow
    checkpoints_count: int
    checkpoint_storage_bytes: int


@dataclass(frozen=True, slots=True)
class SessionPage:
    sessions: tuple[SessionSummaryRow, ...]
    next_cursor: SessionCursor | None  # None: this was the last page


async def search_sessions(database: Database, query: SessionQuery, *, now: datetime) -> SessionPage:
    found = await database.read(_statement(query, now))
    page = tuple(SessionSummaryRow(SESSION_ROWS.row(each), each[-2], each[-1]) for each in found[: query.limit])
    if len(found) <= query.limit or not page:
        return SessionPage(page, None)
    last = page[-1].session
    return SessionPage(page, SessionCursor(last.created_at, last.session_id))


def _statement(query: SessionQuery, now: datetime) -> Select[Any]:
    # One row more than the limit shows whether a page follows. Checkpoints are counted for this page only.
    page = (
        select(*SESSION_ROWS.columns)
        .where(*_conditions(query))
        .order_by(_SESSIONS.created_at.desc(), _SESSIONS.session_id.desc())
        .limit(query.limit + 1)
        .subquery("page")
    )
    checkpoints, runs = tables.checkpoints.c, tables.runs.c
    kept = select().where(checkpoints.run_id == runs.run_id, runs.session_id == page.c.session_id, is_visible(now))
    count = kept.add_columns(func.count()).scalar_subquery()
    size = kept.add_columns(cast(func.coalesce(func.sum(checkpoints.size_bytes), 0), BigInteger)).scalar_subquery()
    return select(*SESSION_ROWS.columns_of(page), count, size).order_by(
        page.c.created_at.desc(), page.c.session_id.desc()
    )


def _conditions(query: SessionQuery) -> list[ColumnElement[bool]]:
    conditions = [_has_entry(key, value) for key, value in query.user_metadata.items()]
    named = _named(query)
    if named:
        conditions.append(or_(*named))
    if query.owners is not None:
        conditions.append(_SESSIONS.owner.in_(query.owners))
    if query.project_ids is not None:
        conditions.append(_SESSIONS.project_id.in_(query.project_ids))
    if query.statuses is not None:
        conditions.append(or_(false(), *(_has_status(wanted) for wanted in query.statuses)))
    if query.cursor is not None:
        conditions.append(_comes_after(query.cursor))
    return conditions


def _named(query: SessionQuery) -> list[ColumnElement[bool]]:
    alternatives: list[ColumnElement[bool]] = []
    if query.session_id is not None:
        alternatives.append(_SESSIONS.session_id == query.session_id)
    words = folded(query.display_name or "").split()
    if words:
        alternatives.append(and_(*(_SESSIONS.display_name_folded.contains(word, autoescape=True) for word in words)))
    return alternatives


def _has_entry(key: str, value: str) -> ColumnElement[bool]:
    entries = tables.session_metadata.c
    return exists().where(entries.session_id == _SESSIONS.session_id, entries.key == key, entries.value == value)


def _has_status(wanted: StatusFilter) -> ColumnElement[bool]:
    if wanted.status == "active":
        return _SESSIONS.finished_at.is_(None)
    if wanted.status == "client_finished":
        return _SESSIONS.finish_reason.in_(_CLIENT_REASONS if wanted.reasons is None else wanted.reasons)
    return _SESSIONS.finish_reason == wanted.status


def _comes_after(cursor: SessionCursor) -> ColumnElement[bool]:
    at, session_id = cursor.last_created_at, cursor.last_session_id
    return or_(_SESSIONS.created_at < at, and_(_SESSIONS.created_at == at, _SESSIONS.session_id < session_id))


def folded(text: str) -> str:
    """For comparison: case-folded, and with accents in one Unicode form."""
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())
