"""The trash row: a removed checkpoint whose archive is in the store yet, and how one gets there."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from sqlalchemy import delete, insert, select
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.sql.elements import ColumnElement

from chockstone.catalog import tables
from chockstone.catalog.checkpoint_row import CHECKPOINT_ROWS, CheckpointRow
from chockstone.catalog.database import AnyRow

_CHECKPOINTS: Final = tables.checkpoints.c
_TRASH: Final = tables.trash.c


@dataclass(frozen=True, slots=True)
class TrashRow:
    trash_id: int
    checkpoint: CheckpointRow  # as it was when it was removed
    reason: str
    discarded_at: datetime
    purge_at: datetime  # from then on its archive may be deleted, and it cannot be restored

    @property
    def path(self) -> str:
        return self.checkpoint.path

    @property
    def archive(self) -> str:
        return self.checkpoint.archive

    @property
    def owner(self) -> str:
        return self.checkpoint.owner

    @property
    def size_bytes(self) -> int:
        return self.checkpoint.size_bytes


TRASH_COLUMNS: Final = (
    _TRASH.trash_id,
    _TRASH.reason,
    _TRASH.discarded_at,
    _TRASH.purge_at,
    *CHECKPOINT_ROWS.columns_of(tables.trash),
)


def trash_row(found: AnyRow) -> TrashRow:
    """``found`` must be of ``TRASH_COLUMNS``."""
    trash_id, reason, discarded_at, purge_at, *checkpoint = found
    return TrashRow(trash_id, CHECKPOINT_ROWS.row(checkpoint), reason, discarded_at, purge_at)


async def move_to_trash(
    connection: AsyncConnection, *where: ColumnElement[bool], reason: str, now: datetime, purge_at: datetime
) -> tuple[TrashRow, ...]:
    """Move the checkpoints that ``where`` finds, within the caller's transaction; in the order of their saves.

    Its first statement writes. Of many callers at once one gets a row.
    """
    # Locked in one order always, so that two of these never wait for each other.
    found = select(_CHECKPOINTS.save_id).where(*where).order_by(_CHECKPOINTS.save_id).with_for_update()
    removal = delete(tables.checkpoints).where(_CHECKPOINTS.save_id.in_(found))
    removed = (await connection.execute(removal.returning(*CHECKPOINT_ROWS.columns))).mappings().all()
    if not removed:
        return ()
    why = {"reason": reason, "discarded_at": now, "purge_at": purge_at}
    entry = insert(tables.trash).returning(*TRASH_COLUMNS)
    entered = await connection.execute(entry, [{**checkpoint, **why} for checkpoint in removed])
    return tuple(sorted(map(trash_row, entered.all()), key=lambda row: row.checkpoint.save_id))
