"""Checkpoint usage: how many checkpoints there are and how many bytes, by whose they are and which run's.

Counts what is published and not expired.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from sqlalchemy import BigInteger, Column, cast, func, select

from chockstone.catalog import schema as tables
from chockstone.catalog.database.database import Database
from chockstone.catalog.tables.checkpoint_rows import is_visible

_CHECKPOINTS: Final = tables.checkpoints.c
_COUNT: Final = func.count()
_SIZE: Final = cast(func.coalesce(func.sum(_CHECKPOINTS.size_bytes), 0), BigInteger)


@dataclass(frozen=True, slots=True)
class Usage:
    count: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class CheckpointHolding:
    """Whose archive it is."""

    run_id: str
    owner: str
    archive: str


async def list_holdings(database: Database, *, now: datetime) -> tuple[CheckpointHolding, ...]:
    """Of everyone, oldest first."""
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
    """Only those that have any are in it."""
    query = select(column, _COUNT, _SIZE).where(is_visible(now)).group_by(column)
    if owner is not None:
        query = query.where(_CHECKPOINTS.owner == owner)
    return {key: Usage(count, size_bytes) for key, count, size_bytes in await database.read(query)}
