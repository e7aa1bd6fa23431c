"""The sampler gap table: the newest gap of weights on each vLLM server, by the archive of the weights."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Final

from sqlalchemy import delete, exists, or_, select
from sqlalchemy.sql.elements import ColumnElement

from chockstone.catalog import schema as tables
from chockstone.catalog.database.database import Database
from chockstone.catalog.database.rows import RowMapper, upsert

BASE_ITSELF: Final = ""  # in the place of an archive


@dataclass(frozen=True, slots=True)
class SamplerGapRow:
    base_model: str
    archive: str  # ``BASE_ITSELF``: the base model without an adapter
    server: str  # URL of the vLLM server
    mean: float | None  # absolute difference in nats; None: it could not be measured
    largest: float | None
    tokens: int
    trouble: str | None  # why it could not be measured
    measured_at: datetime


_ROWS: Final = RowMapper(SamplerGapRow, tables.sampler_gaps)
_GAPS: Final = tables.sampler_gaps.c
_BATCH: Final = 1000  # archives in one statement: databases limit its parameters


class SamplerGapTable:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def record(self, row: SamplerGapRow) -> None:
        """Replace what was known of these weights on this server."""
        measured = ("mean", "largest", "tokens", "trouble", "measured_at")
        await upsert(self._database, tables.sampler_gaps, [asdict(row)], replace=measured)

    async def of_archives(self, archives: Collection[str]) -> Mapping[str, Sequence[SamplerGapRow]]:
        """By archive, each server's. Archives that were never measured are left out."""
        names, found = sorted(set(archives) - {BASE_ITSELF}), _Grouped()
        for start in range(0, len(names), _BATCH):
            for row in await self._list(_GAPS.archive.in_(names[start : start + _BATCH])):
                found[row.archive].append(row)
        return found

    async def largest_means(self, archives: Collection[str]) -> Mapping[str, float]:
        """By archive, the mean gap on the server where it is largest. Archives without one are left out."""
        if len(archives) > _BATCH and not await self._database.read(select(_GAPS.server).limit(1)):
            return {}  # as on most servers
        measured = {
            archive: [row.mean for row in rows if row.mean is not None]
            for archive, rows in (await self.of_archives(archives)).items()
        }
        return {archive: max(means) for archive, means in measured.items() if means}

    async def of_base_models(self, names: Collection[str]) -> Mapping[str, Sequence[SamplerGapRow]]:
        """Of base models without an adapter, by name."""
        found = _Grouped()
        if names:
            for row in await self._list(_GAPS.archive == BASE_ITSELF, _GAPS.base_model.in_(sorted(set(names)))):
                found[row.base_model].append(row)
        return found

    async def prune(self, *, servers: Collection[str]) -> int:
        """Delete the gaps of other servers than these, and of weights that are gone. Returns how many."""
        checkpoints, trash, samplers = tables.checkpoints.c, tables.trash.c, tables.sampling_sessions.c
        is_sampled = exists(
            select(samplers.archive)
            .join_from(tables.sampling_sessions, tables.sessions, tables.sessions.c.session_id == samplers.session_id)
            .where(samplers.archive == _GAPS.archive, tables.sessions.c.finished_at.is_(None))
        )
        is_there = or_(
            _GAPS.archive == BASE_ITSELF,
            exists(select(checkpoints.archive).where(checkpoints.archive == _GAPS.archive)),
            exists(select(trash.archive).where(trash.archive == _GAPS.archive)),
            is_sampled,
        )
        pruning = delete(tables.sampler_gaps).where(or_(_GAPS.server.not_in(sorted(servers)), ~is_there))
        [pruned] = await self._database.write(pruning.returning(_GAPS.server))
        return len(pruned)

    async def _list(self, *where: ColumnElement[bool]) -> tuple[SamplerGapRow, ...]:
        return await _ROWS.read(self._database, select(*_ROWS.columns).where(*where).order_by(_GAPS.server))


class _Grouped(defaultdict[str, list[SamplerGapRow]]):
    def __init__(self) -> None:
        super().__init__(list)
