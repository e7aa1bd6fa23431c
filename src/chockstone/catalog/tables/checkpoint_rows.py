"""Checkpoint rows: one row per archive in the store, which rows are visible, and how many bytes they use.

Recovery archives and the weights of anonymous samplers have no row: no client lists them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal

from sqlalchemy import BigInteger, Column, Insert, and_, cast, delete, func, insert, literal, or_, select
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.sql.elements import ColumnElement

from chockstone.catalog import schema as tables
from chockstone.catalog.database.database import AnyRow, Database
from chockstone.catalog.database.rows import JsonObject, RowMapper

CheckpointKind = Literal["weights", "sampler_weights", "external_weights"]
CheckpointState = Literal["pending", "ready", "damaged"]


@dataclass(frozen=True, slots=True)
class CheckpointRow:
    save_id: int  # of the save that wrote it; later saves have higher ones
    run_id: str
    kind: CheckpointKind
    name: str
    owner: str
    archive: str  # its name in the store
    state: CheckpointState
    overwrites: bool  # whether its commit replaces one of the same name
    size_bytes: int  # as planned while pending
    created_at: datetime  # when the save began: a later save has later weights
    expires_at: datetime | None
    public: bool
    user_metadata: Mapping[str, str]
    base_model: str
    spec: JsonObject
    optimizer_config: JsonObject
    step: int | None
    damage: str | None  # what is wrong with a damaged one
    verified_at: datetime | None = None  # when its archive was last read in full and found right
    seal: str | None = (
        None  # SHA-256 of its archive's manifest, in hexadecimal; None: not known, as in rows of older versions
    )

    @property
    def path(self) -> str:
        return f"tinker://{self.run_id}/{self.kind}/{self.name}"

    def is_expired(self, now: datetime) -> bool:
        return self.expires_at is not None and now >= self.expires_at


CHECKPOINT_ROWS: Final = RowMapper(CheckpointRow, tables.checkpoints)


def named(run_id: str, kind: CheckpointKind, name: str) -> tuple[ColumnElement[bool], ...]:
    columns = tables.checkpoints.c
    return (columns.run_id == run_id, columns.kind == kind, columns.name == name)


def is_published() -> ColumnElement[bool]:
    return tables.checkpoints.c.state != "pending"


def is_visible(now: datetime | ColumnElement[datetime]) -> ColumnElement[bool]:
    """Published, and not expired."""
    expires_at = tables.checkpoints.c.expires_at
    return and_(is_published(), or_(expires_at.is_(None), expires_at > now))


def insertion(values: Mapping[str, object], *, unless: ColumnElement[bool]) -> Insert:
    """An INSERT of ``values``, or of parameters bound later, that inserts nothing if ``unless`` holds."""
    columns = [tables.checkpoints.c[column] for column in values]
    row = select(*(_placed(value, column) for value, column in zip(values.values(), columns, strict=True)))
    return insert(tables.checkpoints).from_select(columns, row.where(~unless))


def _placed(value: object, column: Column[Any]) -> ColumnElement[Any]:  # Any: columns are of all types
    return value if isinstance(value, ColumnElement) else literal(value, column.type)


_CHECKPOINTS: Final = tables.checkpoints.c
_TRASH: Final = tables.trash.c
_COUNT: Final = func.count()
_SIZE: Final = cast(func.coalesce(func.sum(_CHECKPOINTS.size_bytes), 0), BigInteger)


@dataclass(frozen=True, slots=True)
class TrashRow:
    trash_id: int
    checkpoint: CheckpointRow  # as it was when it was removed
    reason: str
    discarded_at: datetime
    purge_at: datetime  # from then on its archive may be deleted, and it cannot be undeleted

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

    Its first statement writes. Of several callers at once, one gets a row.
    """
    # Always locked in the same order, so that two transactions do not deadlock.
    found = select(_CHECKPOINTS.save_id).where(*where).order_by(_CHECKPOINTS.save_id).with_for_update()
    removal = delete(tables.checkpoints).where(_CHECKPOINTS.save_id.in_(found))
    removed = (await connection.execute(removal.returning(*CHECKPOINT_ROWS.columns))).mappings().all()
    if not removed:
        return ()
    removal_facts = {"reason": reason, "discarded_at": now, "purge_at": purge_at}
    entry = insert(tables.trash).returning(*TRASH_COLUMNS)
    added = await connection.execute(entry, [{**checkpoint, **removal_facts} for checkpoint in removed])
    return tuple(sorted(map(trash_row, added.all()), key=lambda row: row.checkpoint.save_id))


@dataclass(frozen=True, slots=True)
class Usage:
    count: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class CheckpointHolding:
    """Which run and user an archive belongs to."""

    run_id: str
    owner: str
    archive: str


async def list_holdings(database: Database, *, now: datetime) -> tuple[CheckpointHolding, ...]:
    """All users' archives that are published and not expired, oldest first."""
    query = select(_CHECKPOINTS.run_id, _CHECKPOINTS.owner, _CHECKPOINTS.archive).where(is_visible(now))
    found = await database.read(query.order_by(_CHECKPOINTS.created_at, _CHECKPOINTS.save_id))
    return tuple(CheckpointHolding(run_id, owner, archive) for run_id, owner, archive in found)


async def sum_usage(database: Database, *, now: datetime, owner: str | None, run_id: str | None) -> Usage:
    query = select(_COUNT, _SIZE).select_from(tables.checkpoints).where(is_visible(now))
    if owner is not None:
        query = query.where(_CHECKPOINTS.owner == owner)
    if run_id is not None:
        query = query.where(_CHECKPOINTS.run_id == run_id)
    [[count, size_bytes]] = await database.read(query)
    return Usage(count, size_bytes)


async def sum_usage_by(
    database: Database, column: Column[str], *, now: datetime, owner: str | None = None
) -> dict[str, Usage]:
    """Sums by ``column``, of checkpoints that are published and not expired. Keys without any are left out."""
    query = select(column, _COUNT, _SIZE).where(is_visible(now)).group_by(column)
    if owner is not None:
        query = query.where(_CHECKPOINTS.owner == owner)
    return {key: Usage(count, size_bytes) for key, count, size_bytes in await database.read(query)}
