"""The usage table: amounts summed by hour, user, session, project, model and type of use.

A use that a journal also holds is added together with its position in that journal. The position of each journal is
kept, so that a use that is added again, as after a crash or a lost answer of the database, counts once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from datetime import UTC, datetime
from functools import cache
from typing import Final, Literal

from sqlalchemy import delete, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection

from chockstone.catalog import schema as tables
from chockstone.catalog.database.database import Database
from chockstone.catalog.database.rows import RowMapper, upsertion

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


@dataclass(frozen=True, slots=True)
class UsagePosition:
    """How far a journal is counted."""

    source: str  # id of the run, or a name that no run has
    birth: str  # of the journal: a later journal of the same source has another one
    counted: int  # of a run: tokens trained since its birth; of samples: sequence of the last counted result
    through: int  # sequence of the last operation that had ended by then


@dataclass(frozen=True, slots=True)
class JournalUses:
    """Uses that a journal holds, by their positions. A position that is not above all before it is skipped."""

    source: str
    birth: str
    through: int
    uses: Sequence[tuple[int, Sequence[Use]]]


_ROWS: Final = RowMapper(Use, tables.usage)
_USAGE: Final = tables.usage.c
_KEY: Final = tuple(column.name for column in tables.usage.primary_key)
_POSITION_ROWS: Final = RowMapper(UsagePosition, tables.usage_positions)
_POSITIONS: Final = tables.usage_positions.c


class UsageTable:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def add(self, uses: Iterable[Use], journals: Sequence[JournalUses] = ()) -> None:
        """Add each amount to the sum of its hour, in one transaction.

        Uses of ``journals`` that were added before are skipped.
        """
        plain = list(uses)
        is_sqlite = self._database.is_sqlite

        async def work(connection: AsyncConnection) -> None:
            counted = await _move_positions(connection, journals, is_sqlite=is_sqlite) if journals else {}
            new = [use for each in journals for use in _not_counted(each, counted)]
            await add_uses(connection, [*plain, *new], is_sqlite=is_sqlite)

        if plain or journals:
            await self._database.run(work, writes=True)

    async def list(self, owner: str | None, *, start: datetime, end: datetime) -> tuple[Use, ...]:
        """Hours that begin from ``start`` to before ``end``, oldest first; of all users when ``owner`` is None."""
        query = select(*_ROWS.columns).where(_USAGE.bucket_start >= start, _USAGE.bucket_start < end)
        if owner is not None:
            query = query.where(_USAGE.owner == owner)
        found = await _ROWS.read(self._database, query.order_by(*tables.usage.primary_key))
        return tuple(
            replace(use, session_id=use.session_id or None, project_id=use.project_id or None) for use in found
        )

    async def position(self, source: str) -> UsagePosition | None:
        return await _POSITION_ROWS.find(self._database, _POSITIONS.source == source)

    async def sources(self) -> tuple[str, ...]:
        """All sources that have a position."""
        return tuple(source for [source] in await self._database.read(select(_POSITIONS.source)))

    async def forget(self, source: str) -> None:
        """The journal is deleted."""
        await self._database.write(delete(tables.usage_positions).where(_POSITIONS.source == source))

    async def trim(self, before: datetime) -> int:
        """Delete the hours that began earlier. Returns how many rows."""
        removal = delete(tables.usage).where(_USAGE.bucket_start < before).returning(_USAGE.bucket_start)
        [dropped] = await self._database.write(removal)
        return len(dropped)


async def add_uses(connection: AsyncConnection, uses: Iterable[Use], *, is_sqlite: bool) -> None:
    """Add each amount to the sum of its hour, in the caller's transaction."""
    sums: dict[tuple[object, ...], float] = defaultdict(float)
    for use in uses:
        *key, amount = astuple(_stored(use))
        sums[tuple(key)] += amount
    # Always in the same order, so that two transactions do not deadlock.
    rows = [dict(zip((*_KEY, "amount"), (*key, sums[key]), strict=True)) for key in sorted(sums, key=repr)]
    if rows:
        await connection.execute(_addition(is_sqlite), rows)


@cache
def _addition(is_sqlite: bool) -> sqlite.Insert | postgresql.Insert:
    """The upsert of amounts. Cached: building it takes longer than running it."""
    return upsertion(tables.usage, is_sqlite=is_sqlite, add=("amount",))


async def _move_positions(
    connection: AsyncConnection, journals: Sequence[JournalUses], *, is_sqlite: bool
) -> Mapping[tuple[str, str], int]:
    """Move the position of each journal behind its uses. Returns where each was, by source and birth."""
    rows = [
        {"source": each.source, "birth": each.birth, "counted": 0, "through": each.through}
        for each in sorted(journals, key=lambda each: each.source)
    ]
    await connection.execute(upsertion(tables.usage_positions, is_sqlite=is_sqlite), rows)  # a writer writes first
    sources = [row["source"] for row in rows]
    query = select(*_POSITION_ROWS.columns).where(_POSITIONS.source.in_(sources)).with_for_update()
    found = _POSITION_ROWS.rows((await connection.execute(query)).all())
    counted = {(each.source, each.birth): each.counted for each in found}
    for row, each in zip(rows, sorted(journals, key=lambda each: each.source), strict=True):
        row["counted"] = max([counted.get((each.source, each.birth), 0), *(position for position, _ in each.uses)])
    move = upsertion(tables.usage_positions, is_sqlite=is_sqlite, replace=("birth", "counted", "through"))
    await connection.execute(move, rows)
    return counted


def _not_counted(journal: JournalUses, counted: Mapping[tuple[str, str], int]) -> Iterable[Use]:
    last = counted.get((journal.source, journal.birth), 0)
    for position, uses in journal.uses:
        if position > last:
            last = position
            yield from uses


def _stored(use: Use) -> Use:
    hour = use.bucket_start.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
    return replace(use, bucket_start=hour, session_id=use.session_id or "", project_id=use.project_id or "")
