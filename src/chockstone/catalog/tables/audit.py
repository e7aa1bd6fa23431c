"""The audit table: who did what, and when. Rows are added and trimmed by age, never changed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time
from typing import Final

from sqlalchemy import delete, func, insert, or_, select

from chockstone.catalog import schema as tables
from chockstone.catalog.database.database import Database
from chockstone.catalog.database.rows import JsonObject, RowMapper


@dataclass(frozen=True, slots=True)
class AuditEvent:
    event: str
    owner: str
    at: datetime
    run_id: str | None = None
    path: str | None = None
    purpose: str | None = None
    details: JsonObject = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AuditRow:
    audit_id: int
    event: str
    owner: str
    at: datetime
    run_id: str | None
    path: str | None
    purpose: str | None
    details: JsonObject


_ROWS: Final = RowMapper(AuditRow, tables.audit)
_AUDIT: Final = tables.audit.c


class AuditTable:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def record(
        self,
        event: str,
        *,
        owner: str,
        now: datetime,
        run_id: str | None = None,
        path: str | None = None,
        purpose: str | None = None,
        details: JsonObject | None = None,
    ) -> None:
        await self.record_many([AuditEvent(event, owner, now, run_id, path, purpose, details or {})])

    async def record_many(self, entries: Iterable[AuditEvent]) -> None:
        """Add all events in one transaction."""
        values = [
            {
                "event": entry.event,
                "owner": entry.owner,
                "at": entry.at,
                "run_id": entry.run_id,
                "path": entry.path,
                "purpose": entry.purpose,
                "details": dict(entry.details),
            }
            for entry in entries
        ]
        if values:
            await self._database.write_many(insert(tables.audit), values)

    async def list(
        self,
        owner: str | None,
        *,
        day: date | None = None,
        prefix: str | None = None,
        user: str | None = None,
        run_id: str | None = None,
        limit: int = 10_000,
    ) -> tuple[AuditRow, ...]:
        """The newest ``limit`` rows, newest last; of all users when ``owner`` is None.

        ``day`` is a day of UTC; ``prefix`` is the beginning of the event's name; ``user`` owns what it was done to, or
        did it.
        """
        query = select(*_ROWS.columns)
        if user is not None:
            query = query.where(or_(_AUDIT.owner == user, _AUDIT.details["by"].as_string() == user))
        if run_id is not None:
            query = query.where(_AUDIT.run_id == run_id)
        if owner is not None:
            query = query.where(_AUDIT.owner == owner)
        if day is not None:
            first, last = (datetime.combine(day, moment, UTC) for moment in (time.min, time.max))
            query = query.where(_AUDIT.at >= first, _AUDIT.at <= last)  # the last possible day has no next one
        if prefix is not None:
            query = query.where(func.substr(_AUDIT.event, 1, len(prefix)) == prefix)  # LIKE may ignore case
        newest_first = query.order_by(_AUDIT.at.desc(), _AUDIT.audit_id.desc()).limit(limit)
        return (await _ROWS.read(self._database, newest_first))[::-1]

    async def trim(self, before: datetime) -> int:
        """Delete older rows. Returns how many."""
        [dropped] = await self._database.write(
            delete(tables.audit).where(_AUDIT.at < before).returning(_AUDIT.audit_id)
        )
        return len(dropped)
