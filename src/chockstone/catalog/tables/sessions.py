"""The session table: one row per client session, from its creation to the first reason that it ended for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final

from sqlalchemy import insert, select, update
from sqlalchemy.exc import IntegrityError

from chockstone.catalog import schema as tables
from chockstone.catalog.database.database import Database
from chockstone.catalog.errors import RowExists, RowMissing
from chockstone.catalog.tables.session_search import (
    SESSION_ROWS,
    FinishReason,
    SessionPage,
    SessionQuery,
    SessionRow,
    folded,
    search_sessions,
)

_SESSIONS: Final = tables.sessions.c


class SessionTable:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def are_there(self) -> bool:
        """Whether there is any session. Works on a catalog of any version."""
        return bool(await self._database.read(select(_SESSIONS.session_id).limit(1)))

    async def create(
        self,
        session_id: str,
        *,
        owner: str,
        sdk_version: str,
        now: datetime,
        project_id: str | None = None,
        display_name: str | None = None,
        tags: Sequence[str] = (),
        user_metadata: Mapping[str, str] | None = None,
        idempotency_key: str | None = None,
    ) -> SessionRow:
        """Create the session, or return the one that its owner created with the same idempotency key.

        ``RowExists`` when the id itself is taken.
        """
        entries = dict(user_metadata or {})
        creation = insert(tables.sessions).values(
            session_id=session_id,
            owner=owner,
            project_id=project_id,
            display_name=display_name,
            display_name_folded=None if display_name is None else folded(display_name),
            tags=list(tags),
            user_metadata=entries,
            sdk_version=sdk_version,
            created_at=now,
            last_heartbeat_at=now,
            idempotency_key=idempotency_key,
        )
        searched = [{"session_id": session_id, "key": key, "value": value} for key, value in entries.items()]
        indexing = [insert(tables.session_metadata).values(searched)] if searched else []
        try:
            made, *_ = await self._database.write(creation.returning(*SESSION_ROWS.columns), *indexing)
        except IntegrityError as error:
            first = await self._made_with(owner, idempotency_key)
            if first is None:
                raise RowExists(f"session {session_id!r} exists already; make another id") from error
            return first
        return SESSION_ROWS.row(made[0])

    async def rebuild(
        self, session_id: str, *, owner: str, now: datetime, project_id: str | None = None, sdk_version: str = ""
    ) -> SessionRow:
        """Create the row of a session that only its runs' journals name; an existing row is left as it is."""
        rebuilt = await SESSION_ROWS.create_once(
            self._database,
            session_id=session_id,
            owner=owner,
            project_id=project_id,
            tags=[],
            user_metadata={},
            sdk_version=sdk_version,
            created_at=now,
            last_heartbeat_at=now,
        )
        return _present(session_id, rebuilt)

    async def get(self, session_id: str) -> SessionRow:
        return _present(session_id, await SESSION_ROWS.find(self._database, _SESSIONS.session_id == session_id))

    async def list(self, owner: str | None, *, limit: int, offset: int = 0) -> tuple[SessionRow, ...]:
        """Newest first; of all users when ``owner`` is None."""
        query = select(*SESSION_ROWS.columns).order_by(_SESSIONS.created_at.desc(), _SESSIONS.session_id.desc())
        if owner is not None:
            query = query.where(_SESSIONS.owner == owner)
        return await SESSION_ROWS.read(self._database, query.limit(limit).offset(offset))

    async def search(self, query: SessionQuery, *, now: datetime) -> SessionPage:
        """A page of sessions with their checkpoint counts; checkpoints expired by ``now`` are not counted."""
        return await search_sessions(self._database, query, now=now)

    async def list_unfinished(self) -> tuple[SessionRow, ...]:
        """Sessions without an end, oldest first."""
        query = select(*SESSION_ROWS.columns).where(_SESSIONS.finished_at.is_(None)).order_by(_SESSIONS.created_at)
        return await SESSION_ROWS.read(self._database, query)

    async def touch_many(self, heartbeats: Mapping[str, datetime]) -> None:
        """Record each session's last heartbeat, in one transaction. Never an earlier one; unknown ids are skipped."""
        await SESSION_ROWS.touch_many(self._database, _SESSIONS.session_id, _SESSIONS.last_heartbeat_at, heartbeats)

    async def finish(
        self, session_id: str, *, reason: FinishReason, now: datetime, detail: str | None = None
    ) -> SessionRow:
        """End the session. The first reason is kept, and is in the returned row."""
        finished = await SESSION_ROWS.change(
            self._database,
            _SESSIONS.session_id == session_id,
            _SESSIONS.finished_at.is_(None),
            finished_at=now,
            finish_reason=reason,
            finish_detail=detail,
        )
        return finished if finished is not None else await self.get(session_id)

    async def set_project(self, session_id: str, project_id: str | None) -> SessionRow:
        """Move the session and its runs to the project."""
        move = update(tables.sessions).where(_SESSIONS.session_id == session_id).values(project_id=project_id)
        follow = update(tables.runs).where(tables.runs.c.session_id == session_id).values(project_id=project_id)
        moved, _ = await self._database.write(move.returning(*SESSION_ROWS.columns), follow)
        return _present(session_id, SESSION_ROWS.only(moved))

    async def _made_with(self, owner: str, idempotency_key: str | None) -> SessionRow | None:
        if idempotency_key is None:
            return None
        return await SESSION_ROWS.find(
            self._database, _SESSIONS.owner == owner, _SESSIONS.idempotency_key == idempotency_key
        )


def _present(session_id: str, session: SessionRow | None) -> SessionRow:
    if session is None:
        raise RowMissing(f"session {session_id!r} is not in this catalog; create one with create_session")
    return session
