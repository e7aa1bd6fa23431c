"""The recovery table: one receipt for each recovery of a run from its journal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from sqlalchemy import delete, insert, or_, select

from chockstone.catalog import schema as tables
from chockstone.catalog.database.database import Database
from chockstone.catalog.database.rows import RowMapper

KEPT: Final = 100  # of each run


@dataclass(frozen=True, slots=True)
class RecoveryRow:
    recovery_id: int
    run_id: str
    owner: str
    at: datetime
    reason: str  # why the run had to be recovered
    archive: str | None  # recovery archive it began with; None: the run's opening
    skipped: Sequence[Mapping[str, str]]  # newer archives that were unusable: "archive" and "reason" of each
    replayed: int  # operations with known results, replayed for the state they leave
    redone: int  # operations that had no result yet
    matched: int  # replayed operations with the same result as before
    mismatched: int  # replayed operations with another result
    seconds: float
    notes: Sequence[str]  # possible reasons for different numbers
    lost: int = 0  # acknowledged operations that are missing from the journal
    differing: Sequence[Mapping[str, Any]] = field(
        default_factory=list
    )  # the first mismatched ones: "sequence", "command", "reason" of each
    uncompared: Sequence[Mapping[str, Any]] = field(
        default_factory=list
    )  # the first replayed ones that were not compared, likewise


_ROWS: Final = RowMapper(RecoveryRow, tables.recoveries)
_RECOVERIES: Final = tables.recoveries.c


class RecoveryTable:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def add(
        self,
        *,
        run_id: str,
        owner: str,
        at: datetime,
        reason: str,
        archive: str | None = None,
        skipped: Sequence[Mapping[str, str]] = (),
        replayed: int = 0,
        redone: int = 0,
        matched: int = 0,
        mismatched: int = 0,
        seconds: float = 0.0,
        notes: Sequence[str] = (),
        lost: int = 0,
        differing: Sequence[Mapping[str, Any]] = (),  # Any: plain JSON
        uncompared: Sequence[Mapping[str, Any]] = (),
    ) -> RecoveryRow:
        """Add the receipt, and delete the run's oldest beyond the last hundred."""
        addition = insert(tables.recoveries).values(
            run_id=run_id,
            owner=owner,
            at=at,
            reason=reason,
            archive=archive,
            skipped=[dict(each) for each in skipped],
            replayed=replayed,
            redone=redone,
            matched=matched,
            mismatched=mismatched,
            seconds=seconds,
            notes=list(notes),
            lost=lost,
            differing=[dict(each) for each in differing],
            uncompared=[dict(each) for each in uncompared],
        )
        of_run = _RECOVERIES.run_id == run_id
        newest = select(_RECOVERIES.recovery_id).where(of_run).order_by(_RECOVERIES.recovery_id.desc()).limit(KEPT)
        trimming = delete(tables.recoveries).where(of_run, _RECOVERIES.recovery_id.not_in(newest))
        [[added], _] = await self._database.write(addition.returning(*_ROWS.columns), trimming)
        return _ROWS.row(added)

    async def search(
        self, owner: str | None, *, run_id: str | None = None, before: int | None = None, limit: int
    ) -> tuple[RecoveryRow, ...]:
        """Newest first, those with a lower id than ``before``; of all users when ``owner`` is None."""
        query = select(*_ROWS.columns).order_by(_RECOVERIES.recovery_id.desc()).limit(limit)
        if owner is not None:
            query = query.where(_RECOVERIES.owner == owner)
        if run_id is not None:
            query = query.where(_RECOVERIES.run_id == run_id)
        if before is not None:
            query = query.where(_RECOVERIES.recovery_id < before)
        return await _ROWS.read(self._database, query)

    async def list_differing(self, *, since: datetime, per_owner: int, limit: int) -> tuple[RecoveryRow, ...]:
        """Recoveries since then that gave other numbers or lost operations, newest first; of each owner the newest."""
        where = (or_(_RECOVERIES.mismatched > 0, _RECOVERIES.lost > 0), _RECOVERIES.at >= since)
        return await _ROWS.read_newest_of_each(
            self._database, "owner", "recovery_id", *where, count=per_owner, limit=limit
        )

    async def list(self, run_id: str, *, limit: int = KEPT) -> tuple[RecoveryRow, ...]:
        """Newest first."""
        query = select(*_ROWS.columns).where(_RECOVERIES.run_id == run_id).order_by(_RECOVERIES.recovery_id.desc())
        return await _ROWS.read(self._database, query.limit(limit))
