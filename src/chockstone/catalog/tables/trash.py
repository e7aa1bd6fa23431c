"""The trash table: removed checkpoints until their archives are deleted. ``move_to_trash`` adds rows.

A row can be undeleted until its ``purge_at``. A purge claims the row, deletes its archive and forgets the row, in
this order: a crash in between leaves a row whose purge can be repeated.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

from sqlalchemy import BigInteger, Select, cast, delete, func, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.sql.elements import ColumnElement

from chockstone.catalog import schema as tables
from chockstone.catalog.database.database import Database
from chockstone.catalog.errors import CheckpointRowExists, RowMissing
from chockstone.catalog.tables.checkpoint_rows import (
    CHECKPOINT_ROWS,
    TRASH_COLUMNS,
    CheckpointRow,
    TrashRow,
    Usage,
    insertion,
    is_published,
    move_to_trash,
    trash_row,
)

_TRASH: Final = tables.trash.c
_CHECKPOINTS: Final = tables.checkpoints.c
_BATCH: Final = 1000  # rows in one statement: databases limit its parameters


class TrashTable:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def list(self, owner: str | None = None, *, limit: int = 1000) -> tuple[TrashRow, ...]:
        """Newest first; of all users when ``owner`` is None."""
        query = _query().order_by(_TRASH.discarded_at.desc(), _TRASH.trash_id.desc()).limit(limit)
        return await self._read(query if owner is None else query.where(_TRASH.owner == owner))

    async def due(self, *, now: datetime, limit: int) -> tuple[TrashRow, ...]:
        """Rows that may be purged by now, longest due first."""
        query = _query().where(_TRASH.purge_at <= now).order_by(_TRASH.purge_at, _TRASH.trash_id)
        return await self._read(query.limit(limit))

    async def oldest(self, limit: int) -> tuple[TrashRow, ...]:
        """Rows to purge first when space is needed, due or not."""
        return await self._read(_query().order_by(_TRASH.discarded_at, _TRASH.trash_id).limit(limit))

    async def get(self, trash_id: int) -> TrashRow:
        found = await self._read(_query().where(_TRASH.trash_id == trash_id))
        if not found:
            raise _gone(trash_id)
        return found[0]

    async def find_save(self, save_id: int) -> TrashRow | None:
        """The entry of the checkpoint that this save wrote, if it is in the trash."""
        found = await self._read(_query().where(_TRASH.save_id == save_id))
        return found[0] if found else None

    async def usage(self, owner: str | None = None) -> Usage:
        """Of all users when ``owner`` is None."""
        size = cast(func.coalesce(func.sum(_TRASH.size_bytes), 0), BigInteger)
        query = select(func.count(), size).select_from(tables.trash)
        [[count, size_bytes]] = await self._database.read(
            query if owner is None else query.where(_TRASH.owner == owner)
        )
        return Usage(count, size_bytes)

    async def claim(self, trash_ids: Sequence[int]) -> tuple[TrashRow, ...]:
        """Take rows for purging, due or not: from here on they cannot be undeleted, so their archives may be deleted.

        Rows purged or undeleted already are skipped. A row may be claimed twice: a purge may be repeated.
        """
        ordered = sorted(trash_ids)

        async def work(connection: AsyncConnection) -> tuple[TrashRow, ...]:
            claimed: tuple[TrashRow, ...] = ()
            for start in range(0, len(ordered), _BATCH):
                some = _TRASH.trash_id.in_(ordered[start : start + _BATCH])
                found = select(_TRASH.trash_id).where(some).order_by(_TRASH.trash_id).with_for_update()
                # The time it was discarded, not now: an undelete that is under way compares with its own, earlier, now.
                claiming = update(tables.trash).where(_TRASH.trash_id.in_(found)).values(purge_at=_TRASH.discarded_at)
                rows = (await connection.execute(claiming.returning(*TRASH_COLUMNS))).all()
                claimed += tuple(sorted(map(trash_row, rows), key=lambda row: row.trash_id))
            return claimed

        return await self._database.run(work, writes=True) if ordered else ()

    async def forget(self, trash_id: int) -> bool:
        """Delete the row, after its archive. Returns whether this call did."""
        [forgotten] = await self._database.write(
            delete(tables.trash).where(_TRASH.trash_id == trash_id).returning(_TRASH.trash_id)
        )
        return bool(forgotten)

    async def undelete(self, trash_id: int, *, name: str | None = None, now: datetime) -> CheckpointRow:
        """Publish the checkpoint again, under its own name or another; without its expiry if that has passed.

        ``CheckpointRowExists`` if the name is taken or being written: the row stays in the trash.
        ``RowMissing`` if it was purged, undeleted or is due to be purged. An expired checkpoint that
        still has the name goes to the trash instead, until the same ``purge_at``.
        """

        async def work(connection: AsyncConnection) -> CheckpointRow:
            taking = delete(tables.trash).where(_TRASH.trash_id == trash_id, _TRASH.purge_at > now)
            taken = (await connection.execute(taking.returning(*TRASH_COLUMNS))).all()
            if not taken:
                raise _gone(trash_id)
            trashed = trash_row(taken[0])
            old = trashed.checkpoint
            called = _called(old, name or old.name)
            is_expired = _CHECKPOINTS.expires_at <= now
            await move_to_trash(
                connection, *called, is_published(), is_expired, reason="expired", now=now, purge_at=trashed.purge_at
            )
            values = {
                **{column.name: getattr(old, column.name) for column in CHECKPOINT_ROWS.columns},
                "name": name or old.name,
                "expires_at": None if old.is_expired(now) else old.expires_at,
            }
            entry = insertion(values, unless=select(_CHECKPOINTS.save_id).where(*called).exists())
            undeleted = CHECKPOINT_ROWS.only(
                (await connection.execute(entry.returning(*CHECKPOINT_ROWS.columns))).all()
            )
            if undeleted is None:
                raise _taken(old, name or old.name)
            return undeleted

        try:
            return await self._database.run(work, writes=True)
        except IntegrityError as error:
            old = (await self.get(trash_id)).checkpoint
            raise _taken(old, name or old.name) from error

    async def _read(self, query: Select[Any]) -> tuple[TrashRow, ...]:
        return tuple(trash_row(found) for found in await self._database.read(query))


def _query() -> Select[Any]:
    return select(*TRASH_COLUMNS)


def _called(checkpoint: CheckpointRow, name: str) -> tuple[ColumnElement[bool], ...]:
    return (
        _CHECKPOINTS.run_id == checkpoint.run_id,
        _CHECKPOINTS.kind == checkpoint.kind,
        _CHECKPOINTS.name == name,
    )


def _gone(trash_id: int) -> RowMissing:
    return RowMissing(
        f"trash entry {trash_id!r} is gone: it was purged, is being purged, or was undeleted already; "
        f"list the trash for what can be undeleted"
    )


def _taken(checkpoint: CheckpointRow, name: str) -> CheckpointRowExists:
    path = f"tinker://{checkpoint.run_id}/{checkpoint.kind}/{name}"
    return CheckpointRowExists(f"checkpoint {path!r} exists already or is being written; undelete under another name")
