"""The checkpoint table: the index of the store's archives, by run, kind and name.

``CheckpointSaves`` publishes rows; this table reads and changes them. A discarded checkpoint moves to the trash, which
keeps its row until its archive is deleted.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Iterator, Sequence
from datetime import datetime
from typing import Final

from sqlalchemy import and_, func, or_, select, update
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.sql.elements import ColumnElement

from chockstone.catalog import schema as tables
from chockstone.catalog.database.database import Database
from chockstone.catalog.database.rows import Page
from chockstone.catalog.errors import RowMissing
from chockstone.catalog.tables.checkpoint_rows import (
    CHECKPOINT_ROWS,
    CheckpointHolding,
    CheckpointKind,
    CheckpointRow,
    TrashRow,
    Usage,
    is_published,
    is_visible,
    list_holdings,
    move_to_trash,
    named,
    sum_usage,
    sum_usage_by,
)

_CHECKPOINTS: Final = tables.checkpoints.c
_NEWEST_FIRST: Final = (_CHECKPOINTS.created_at.desc(), _CHECKPOINTS.save_id.desc())
_BATCH: Final = 1000  # rows in one statement: databases limit its parameters


class CheckpointTable:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def discard(
        self, rows: Sequence[CheckpointRow], *, reason: str, now: datetime, purge_at: datetime
    ) -> tuple[TrashRow, ...]:
        """Move published checkpoints, expired or not, to the trash, in one transaction.

        Rows that are gone already are skipped: of several callers at once, one gets a row.
        """
        save_ids = sorted(row.save_id for row in rows)

        async def work(connection: AsyncConnection) -> tuple[TrashRow, ...]:
            trashed: tuple[TrashRow, ...] = ()
            for some in _batches(save_ids):
                where = (_CHECKPOINTS.save_id.in_(some), is_published())
                trashed += await move_to_trash(connection, *where, reason=reason, now=now, purge_at=purge_at)
            return trashed

        return await self._database.run(work, writes=True) if save_ids else ()

    async def get(self, run_id: str, kind: CheckpointKind, name: str, *, now: datetime) -> CheckpointRow:
        """A published checkpoint, ready or damaged; ``RowMissing`` if it expired."""
        found = await CHECKPOINT_ROWS.find(self._database, *named(run_id, kind, name), is_published())
        checkpoint = _present(run_id, kind, name, found)
        if checkpoint.is_expired(now):
            raise RowMissing(
                f"checkpoint {checkpoint.path!r} expired at {checkpoint.expires_at:%Y-%m-%d %H:%M} UTC; "
                f"save with a longer ttl_seconds, or none, to keep one",
                code="expired",
            )
        return checkpoint

    async def get_save(self, save_id: int) -> CheckpointRow | None:
        """The row if it is published, expired or not."""
        return await CHECKPOINT_ROWS.find(self._database, _CHECKPOINTS.save_id == save_id, is_published())

    async def named(self, run_id: str, name: str, *, now: datetime) -> tuple[CheckpointRow, ...]:
        """Checkpoints of every kind with this name, published and not expired."""
        query = select(*CHECKPOINT_ROWS.columns).where(
            _CHECKPOINTS.run_id == run_id, _CHECKPOINTS.name == name, is_visible(now)
        )
        return await CHECKPOINT_ROWS.read(self._database, query.order_by(_CHECKPOINTS.kind))

    async def is_pending(self, run_id: str, kind: CheckpointKind, name: str) -> bool:
        """Whether a save writes under the name."""
        found = await CHECKPOINT_ROWS.find(self._database, *named(run_id, kind, name), ~is_published())
        return found is not None

    async def history(
        self,
        run_id: str,
        kind: CheckpointKind,
        *,
        now: datetime,
        limit: int = 100,
        before_save_id: int | None = None,
        damaged_too: bool = False,
    ) -> tuple[CheckpointRow, ...]:
        """Ready checkpoints, newest first; with ``before_save_id``, those older than that one."""
        wanted = is_published() if damaged_too else _CHECKPOINTS.state == "ready"
        query = select(*CHECKPOINT_ROWS.columns).where(
            _CHECKPOINTS.run_id == run_id, _CHECKPOINTS.kind == kind, wanted, is_visible(now)
        )
        if before_save_id is not None:
            query = query.where(_is_older_than(before_save_id))
        return await CHECKPOINT_ROWS.read(self._database, query.order_by(*_NEWEST_FIRST).limit(limit))

    async def latest(self, run_id: str, kind: CheckpointKind, *, now: datetime) -> CheckpointRow | None:
        return (await self.latest_of([run_id], now=now)).get((run_id, kind))

    async def latest_of(
        self, run_ids: Sequence[str], *, now: datetime
    ) -> dict[tuple[str, CheckpointKind], CheckpointRow]:
        """The newest ready checkpoint of each run and kind that has one, in one statement."""
        age = func.row_number().over(partition_by=(_CHECKPOINTS.run_id, _CHECKPOINTS.kind), order_by=_NEWEST_FIRST)
        ranked = (
            select(*CHECKPOINT_ROWS.columns, age.label("age"))
            .where(_CHECKPOINTS.run_id.in_(run_ids), _CHECKPOINTS.state == "ready", is_visible(now))
            .subquery("ranked")
        )
        query = select(*CHECKPOINT_ROWS.columns_of(ranked)).where(ranked.c.age == 1)
        newest = await CHECKPOINT_ROWS.read(self._database, query)
        return {(checkpoint.run_id, checkpoint.kind): checkpoint for checkpoint in newest}

    async def list_by_run(self, run_id: str, *, now: datetime, limit: int | None = None) -> tuple[CheckpointRow, ...]:
        """The run's checkpoints that are published and not expired, newest first. ``limit`` None: all of them."""
        query = select(*CHECKPOINT_ROWS.columns).where(_CHECKPOINTS.run_id == run_id, is_visible(now))
        return await CHECKPOINT_ROWS.read(self._database, query.order_by(*_NEWEST_FIRST).limit(limit))

    async def list(
        self,
        owner: str | None,
        *,
        limit: int,
        now: datetime,
        offset: int = 0,
        kinds: Collection[CheckpointKind] | None = None,
    ) -> Page[CheckpointRow]:
        """Published and not expired, newest first; of all users when ``owner`` is None, of all kinds unless given."""
        where = [is_visible(now)] if owner is None else [is_visible(now), _CHECKPOINTS.owner == owner]
        if kinds is not None:
            where.append(_CHECKPOINTS.kind.in_(kinds))
        return await CHECKPOINT_ROWS.read_page(
            self._database, *where, order_by=_NEWEST_FIRST, limit=limit, offset=offset
        )

    async def list_pending(self) -> tuple[CheckpointRow, ...]:
        """Saves that are being written, or that a crash left. Oldest first."""
        query = select(*CHECKPOINT_ROWS.columns).where(~is_published()).order_by(_CHECKPOINTS.save_id)
        return await CHECKPOINT_ROWS.read(self._database, query)

    async def list_expired(self, *, now: datetime, limit: int) -> tuple[CheckpointRow, ...]:
        """Published checkpoints that have expired, longest expired first."""
        query = select(*CHECKPOINT_ROWS.columns).where(is_published(), _CHECKPOINTS.expires_at <= now)
        return await CHECKPOINT_ROWS.read(
            self._database, query.order_by(_CHECKPOINTS.expires_at, _CHECKPOINTS.save_id).limit(limit)
        )

    async def list_unverified(self, *, before: datetime, limit: int) -> tuple[CheckpointRow, ...]:
        """Ready checkpoints last verified, or else begun, earlier than ``before``; oldest first."""
        known_good_at = func.coalesce(_CHECKPOINTS.verified_at, _CHECKPOINTS.created_at)
        query = select(*CHECKPOINT_ROWS.columns).where(_CHECKPOINTS.state == "ready", known_good_at < before)
        return await CHECKPOINT_ROWS.read(
            self._database, query.order_by(known_good_at, _CHECKPOINTS.save_id).limit(limit)
        )

    async def list_damaged(self, *, now: datetime, per_owner: int, limit: int) -> tuple[CheckpointRow, ...]:
        """Checkpoints that are marked as damaged and not expired, newest first; of each owner the newest."""
        where = (_CHECKPOINTS.state == "damaged", is_visible(now))
        return await CHECKPOINT_ROWS.read_newest_of_each(
            self._database, "owner", "save_id", *where, count=per_owner, limit=limit
        )

    async def iterate(self, page: int = 1000) -> AsyncIterator[CheckpointRow]:
        """Every row, pending and expired ones too, in the order of their saves; reads a page at a time."""
        last_save_id = 0
        query = select(*CHECKPOINT_ROWS.columns).order_by(_CHECKPOINTS.save_id).limit(page)
        while rows := await CHECKPOINT_ROWS.read(self._database, query.where(_CHECKPOINTS.save_id > last_save_id)):
            for row in rows:
                yield row
            last_save_id = rows[-1].save_id

    async def usage(self, *, now: datetime, owner: str | None = None, run_id: str | None = None) -> Usage:
        """Count and bytes of the checkpoints that are published and not expired."""
        return await sum_usage(self._database, now=now, owner=owner, run_id=run_id)

    async def usage_by_owner(self, now: datetime) -> dict[str, Usage]:
        return await sum_usage_by(self._database, _CHECKPOINTS.owner, now=now)

    async def usage_by_state(self, now: datetime) -> dict[str, Usage]:
        return await sum_usage_by(self._database, _CHECKPOINTS.state, now=now)

    async def usage_by_run(self, now: datetime, owner: str | None = None) -> dict[str, Usage]:
        return await sum_usage_by(self._database, _CHECKPOINTS.run_id, now=now, owner=owner)

    async def holdings(self, now: datetime) -> tuple[CheckpointHolding, ...]:
        """Run, owner and archive of each checkpoint that is published and not expired, oldest first."""
        return await list_holdings(self._database, now=now)

    async def set_expiry(
        self, run_id: str, kind: CheckpointKind, name: str, expires_at: datetime | None, *, now: datetime
    ) -> CheckpointRow:
        """``expires_at`` None: never expires. RowMissing for a checkpoint that expired before ``now``."""
        return await self._change(run_id, kind, name, now=now, expires_at=expires_at)

    async def set_public(
        self, run_id: str, kind: CheckpointKind, name: str, *, public: bool, now: datetime
    ) -> CheckpointRow:
        return await self._change(run_id, kind, name, now=now, public=public)

    async def mark_damaged(self, save_id: int, damage: str) -> CheckpointRow | None:
        """A damaged checkpoint stays listed, so that its owner sees it, and is never the latest. None: unpublished."""
        where = (_CHECKPOINTS.save_id == save_id, is_published())
        return await CHECKPOINT_ROWS.change(self._database, *where, state="damaged", damage=damage)

    async def mark_ready(self, save_id: int) -> CheckpointRow | None:
        """For a checkpoint that was marked damaged and verifies now. None: not published."""
        where = (_CHECKPOINTS.save_id == save_id, is_published())
        return await CHECKPOINT_ROWS.change(self._database, *where, state="ready", damage=None)

    async def set_size(self, save_id: int, size_bytes: int) -> CheckpointRow | None:
        """Correct the size to that of the archive. None: not published."""
        where = (_CHECKPOINTS.save_id == save_id, is_published())
        return await CHECKPOINT_ROWS.change(self._database, *where, size_bytes=size_bytes)

    async def add_seal(self, save_id: int, seal: str) -> CheckpointRow | None:
        """Add a seal to a row of an older version that has none. None: the row has a seal already, or is gone."""
        where = (_CHECKPOINTS.save_id == save_id, is_published(), _CHECKPOINTS.seal.is_(None))
        return await CHECKPOINT_ROWS.change(self._database, *where, seal=seal)

    async def mark_verified(self, save_ids: Sequence[int], *, at: datetime) -> None:
        """Record that the archives were read in full and verified. Rows that are not ready, or gone, are skipped."""
        if not save_ids:
            return
        change = update(tables.checkpoints).where(_CHECKPOINTS.state == "ready").values(verified_at=at)
        ordered = sorted(save_ids)
        await self._database.write(*(change.where(_CHECKPOINTS.save_id.in_(some)) for some in _batches(ordered)))

    async def _change(
        self, run_id: str, kind: CheckpointKind, name: str, *, now: datetime, **values: object
    ) -> CheckpointRow:
        where = (*named(run_id, kind, name), is_visible(now))
        return _present(run_id, kind, name, await CHECKPOINT_ROWS.change(self._database, *where, **values))


def _is_older_than(save_id: int) -> ColumnElement[bool]:
    other = tables.checkpoints.alias("other")
    moment = select(other.c.created_at).where(other.c.save_id == save_id).scalar_subquery()
    came_before = _CHECKPOINTS.save_id < save_id  # decides alone once the other row is gone
    return or_(
        _CHECKPOINTS.created_at < moment,
        and_(came_before, or_(_CHECKPOINTS.created_at == moment, moment.is_(None))),
    )


def _batches(save_ids: Sequence[int]) -> Iterator[Sequence[int]]:
    for start in range(0, len(save_ids), _BATCH):
        yield save_ids[start : start + _BATCH]


def _present(run_id: str, kind: str, name: str, checkpoint: CheckpointRow | None) -> CheckpointRow:
    if checkpoint is None:
        raise RowMissing(f"checkpoint 'tinker://{run_id}/{kind}/{name}' is not in this catalog; list those of its run")
    return checkpoint
