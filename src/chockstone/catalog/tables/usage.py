"""The usage table: amounts summed by hour, user, session, project, model and type of use."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import astuple, dataclass, replace
from datetime import UTC, datetime
from typing import Final, Literal

from sqlalchemy import delete, select

from chockstone.catalog import schema as tables
from chockstone.catalog.database.database import Database
from chockstone.catalog.database.rows import RowMapper, upsert

UseType = Literal["training", "sampling_prefill", "sampling_sample", "checkpoint", "storage"]


@dataclass(frozen=True, slots=True)
class Use:
    bucket_start: datetime  # any time within the hour
    owner: str
    session_id: str | None
    project_id: str | None
    base_model: str
    type: UseType
    cached: bool
    amount: float  # tokens, checkpoints or gigabyte-hours, as the type says


_ROWS: Final = RowMapper(Use, tables.usage)
_USAGE: Final = tables.usage.c
_KEY: Final = tuple(column.name for column in tables.usage.primary_key)


class UsageTable:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def add(self, uses: Iterable[Use]) -> None:
        """Add each amount to the sum of its hour, in one transaction."""
        sums: dict[tuple[object, ...], float] = defaultdict(float)
        for use in uses:
            *key, amount = astuple(_stored(use))
            sums[tuple(key)] += amount
        # Always in the same order, so that two transactions do not deadlock.
        rows = [dict(zip((*_KEY, "amount"), (*key, sums[key]), strict=True)) for key in sorted(sums, key=repr)]
        await upsert(self._database, tables.usage, rows, add=("amount",))

    async def list(self, owner: str | None, *, start: datetime, end: datetime) -> tuple[Use, ...]:
        """Hours that begin from ``start`` to before ``end``, oldest first; of all users when ``owner`` is None."""
        query = select(*_ROWS.columns).where(_USAGE.bucket_start >= start, _USAGE.bucket_start < end)
        if owner is not None:
            query = query.where(_USAGE.owner == owner)
        found = await _ROWS.read(self._database, query.order_by(*tables.usage.primary_key))
        return tuple(
            replace(use, session_id=use.session_id or None, project_id=use.project_id or None) for use in found
        )

    async def trim(self, before: datetime) -> int:
        """Delete the hours that began earlier. Returns how many rows."""
        removal = delete(tables.usage).where(_USAGE.bucket_start < before).returning(_USAGE.bucket_start)
        [dropped] = await self._database.write(removal)
        return len(dropped)


def _stored(use: Use) -> Use:
    hour = use.bucket_start.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
    return replace(use, bucket_start=hour, session_id=use.session_id or "", project_id=use.project_id or "")
