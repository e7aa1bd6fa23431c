"""The checkpoint table: the index of the store's archives, by run, kind and name.

A save begins as a pending row that only its writer sees; its commit publishes the row. An overwrite leaves the old
checkpoint as it is until the commit. A replaced or discarded checkpoint moves to the trash, which keeps its row until
its archive is deleted.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cache
from typing import Any, Final

from sqlalchemy import Select, and_, bindparam, delete, func, or_, select, true, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.sql.dml import ReturningInsert, ReturningUpdate
from sqlalchemy.sql.elements import ColumnElement

from chockstone.catalog import schema as tables
from chockstone.catalog.database.database import AnyRow, Database
from chockstone.catalog.database.rows import JsonObject, Page
from chockstone.catalog.errors import CheckpointRowExists, RowMissing
from chockstone.catalog.tables.checkpoint_rows import (
    CHECKPOINT_ROWS,
    CheckpointHolding,
    CheckpointKind,
    CheckpointRow,
    CheckpointState,
    TrashRow,
    Usage,
    insertion,
    is_published,
    is_visible,
    list_holdings,
    move_to_trash,
    sum_usage,
    sum_usage_by,
)
from chockstone.catalog.tables.usage import Use, add_uses

_CHECKPOINTS: Final = tables.checkpoints.c
_BEGUN: Final = tuple(  # the columns that a save begins with
    column.name for column in CHECKPOINT_ROWS.columns if column.name not in ("save_id", "damage", "verified_at", "seal")
)
_NEWEST_FIRST: Final = (_CHECKPOINTS.created_at.desc(), _CHECKPOINTS.save_id.desc())
_BATCH: Final = 1000  # rows in one statement: databases limit its parameters


@dataclass(frozen=True, slots=True)
class Committed:
    checkpoint: CheckpointRow
    replaced: TrashRow | None  # the checkpoint that had its name before


class CheckpointTable:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def begin(
        self,
        run_id: str,
        kind: CheckpointKind,
        name: str,
        *,
        archive: str,
        owner: str,
        base_model: str,
        spec: JsonObject,
        now: datetime,
        optimizer_config: JsonObject | None = None,
        user_metadata: Mapping[str, str] | None = None,
        expires_at: datetime | None = None,
        public: bool = False,
        step: int | None = None,
        size_bytes: int = 0,
        overwrite: bool = False,
    ) -> CheckpointRow:
        """Reserve the name for a save. The row is in no list until ``commit``.

        A save is identified by its archive: begun again, as after a crash, it gets its own row, in whatever state
        that is. ``CheckpointRowExists`` if another save writes under the name, or if a checkpoint is published
        there that is neither expired nor to be overwritten.
        """
        values = {
            "run_id": run_id,
            "kind": kind,
            "name": name,
            "owner": owner,
            "archive": archive,
            "state": "pending",
            "overwrites": overwrite,
            "size_bytes": size_bytes,
            "created_at": now,
            "expires_at": expires_at,
            "public": public,
            "user_metadata": dict(user_metadata or {}),
            "base_model": base_model,
            "spec": dict(spec),
            "optimizer_config": dict(optimizer_config or {}),
            "step": step,
        }
        given = {f"given_{column}": value for column, value in values.items()}

        async def work(connection: AsyncConnection) -> Sequence[AnyRow]:
            created: Sequence[AnyRow] = (
                await connection.execute(_creation(overwrite), {**given, "given_now": now})
            ).all()
            return created

        try:
            begun = await self._database.run(work, writes=True)
        except IntegrityError:
            begun = ()
        return CHECKPOINT_ROWS.only(begun) or await self._own_or_refuse(run_id, kind, name, archive)

    async def commit(
        self,
        save: CheckpointRow,
        *,
        size_bytes: int,
        now: datetime,
        purge_at: datetime | None = None,
        seal: str | None = None,
        use: Use | None = None,
    ) -> Committed:
        """Publish a save whose archive is durable, with its seal. Idempotent. ``use`` is counted with it, for the
        project that its session is in.

        The checkpoint that it replaces moves to the trash in the same transaction, until ``purge_at``, or to be
        purged at once if that is None. ``CheckpointRowExists`` if another checkpoint took the name meanwhile: the
        caller must then call ``fail``.
        """
        given = {"given_save_id": save.save_id, "given_size_bytes": size_bytes, "given_seal": seal}

        async def publish(connection: AsyncConnection) -> CheckpointRow | None:
            published = CHECKPOINT_ROWS.only((await connection.execute(_publication(), given)).all())
            if published is not None and use is not None:
                session = {"given_session_id": use.session_id}
                project_id = (await connection.execute(_project_of_session(), session)).scalar()
                await add_uses(connection, [replace(use, project_id=project_id)], is_sqlite=self._database.is_sqlite)
            return published

        if not save.overwrites:  # usually there is nothing to replace
            with suppress(IntegrityError):
                published = await self._database.run(publish, writes=True)
                return Committed(published or await self._ended(save), None)
        other = tables.checkpoints.alias("other")
        still_pending = select(other.c.save_id).where(other.c.save_id == save.save_id, other.c.state == "pending")
        replaceable = true() if save.overwrites else _CHECKPOINTS.expires_at <= now
        replaced = (*_named(save.run_id, save.kind, save.name), is_published(), replaceable, still_pending.exists())

        async def work(connection: AsyncConnection) -> tuple[CheckpointRow | None, tuple[TrashRow, ...]]:
            trashed = await move_to_trash(
                connection, *replaced, reason="overwritten", now=now, purge_at=now if purge_at is None else purge_at
            )
            return await publish(connection), trashed

        try:
            published, trashed = await self._database.run(work, writes=True)
        except IntegrityError as error:
            raise CheckpointRowExists(
                f"checkpoint {save.path!r} was published by another save meanwhile; choose another name"
            ) from error
        return Committed(published or await self._ended(save), trashed[0] if trashed else None)

    async def fail(self, save: CheckpointRow) -> bool:
        """Delete a pending save, which frees its name. Returns whether it was pending; a published one stays."""
        is_pending = (_CHECKPOINTS.save_id == save.save_id, _CHECKPOINTS.state == "pending")
        surrender = delete(tables.checkpoints).where(*is_pending).returning(_CHECKPOINTS.save_id)
        [given_up] = await self._database.write(surrender)
        return bool(given_up)

    async def register(
        self,
        *,
        run_id: str,
        kind: CheckpointKind,
        name: str,
        owner: str,
        archive: str,
        base_model: str,
        spec: JsonObject,
        created_at: datetime,
        size_bytes: int,
        optimizer_config: JsonObject | None = None,
        user_metadata: Mapping[str, str] | None = None,
        expires_at: datetime | None = None,
        public: bool = False,
        step: int | None = None,
        state: CheckpointState = "ready",
        damage: str | None = None,
        seal: str | None = None,
    ) -> CheckpointRow:
        """Publish an archive that is in the store already: a copy, or one that a rebuild found.

        An archive has one row: registered again, it gets the existing row, whatever that says.
        ``CheckpointRowExists`` if another checkpoint is published under the name, expired or not.
        """
        values = {
            "run_id": run_id,
            "kind": kind,
            "name": name,
            "owner": owner,
            "archive": archive,
            "state": state,
            "overwrites": False,
            "size_bytes": size_bytes,
            "created_at": created_at,
            "expires_at": expires_at,
            "public": public,
            "user_metadata": dict(user_metadata or {}),
            "base_model": base_model,
            "spec": dict(spec),
            "optimizer_config": dict(optimizer_config or {}),
            "step": step,
            "damage": damage,
            "seal": seal,
        }
        is_own = _CHECKPOINTS.archive == archive
        creation = insertion(values, unless=select(_CHECKPOINTS.save_id).where(is_own).exists())
        try:
            [registered] = await self._database.write(creation.returning(*CHECKPOINT_ROWS.columns))
        except IntegrityError:
            registered = ()
        row = CHECKPOINT_ROWS.only(registered) or await CHECKPOINT_ROWS.find(self._database, is_own)
        if row is None:
            raise CheckpointRowExists(
                f"checkpoint 'tinker://{run_id}/{kind}/{name}' exists already; choose another name"
            )
        return row

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
        found = await CHECKPOINT_ROWS.find(self._database, *_named(run_id, kind, name), is_published())
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
        found = await CHECKPOINT_ROWS.find(self._database, *_named(run_id, kind, name), ~is_published())
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
        where = (*_named(run_id, kind, name), is_visible(now))
        return _present(run_id, kind, name, await CHECKPOINT_ROWS.change(self._database, *where, **values))

    async def _own_or_refuse(self, run_id: str, kind: CheckpointKind, name: str, archive: str) -> CheckpointRow:
        query = select(*CHECKPOINT_ROWS.columns).where(*_named(run_id, kind, name)).order_by(_CHECKPOINTS.save_id)
        found = await CHECKPOINT_ROWS.read(self._database, query)
        for checkpoint in found:
            if checkpoint.archive == archive:
                return checkpoint
        path = f"tinker://{run_id}/{kind}/{name}"
        if any(checkpoint.state == "pending" for checkpoint in found):
            raise CheckpointRowExists(f"checkpoint {path!r} is being written by another save; choose another name")
        raise CheckpointRowExists(f"checkpoint {path!r} exists already; choose another name, or overwrite it")

    async def _ended(self, save: CheckpointRow) -> CheckpointRow:
        found = await CHECKPOINT_ROWS.find(self._database, _CHECKPOINTS.save_id == save.save_id)
        if found is None:
            raise RowMissing(
                f"save {save.save_id!r} of checkpoint {save.path!r} is not in this catalog: it was given up, "
                f"or its checkpoint was replaced or deleted since. Save again."
            )
        return found


@cache
def _creation(overwrite: bool) -> ReturningInsert[Any]:  # Any: of a checkpoint's columns
    """The INSERT of a new save, with parameters ``given_…``. Cached: building it takes longer than running it."""
    given = {column: bindparam(f"given_{column}", type_=tables.checkpoints.c[column].type) for column in _BEGUN}
    # Its own archive blocks even an overwrite: that save is done.
    is_own = _CHECKPOINTS.archive == given["archive"]
    now = bindparam("given_now", type_=_CHECKPOINTS.expires_at.type)
    in_the_way = is_own if overwrite else or_(is_own, is_visible(now))
    same_name = [tables.checkpoints.c[column] == given[column] for column in ("run_id", "kind", "name")]
    taken = select(_CHECKPOINTS.save_id).where(*same_name, is_published(), in_the_way).exists()
    return insertion(given, unless=taken).returning(*CHECKPOINT_ROWS.columns)


@cache
def _publication() -> ReturningUpdate[Any]:  # Any: of a checkpoint's columns
    """The UPDATE that publishes a pending save, with parameters ``given_…``. Cached, as ``_creation`` is."""
    given = {column: bindparam(f"given_{column}", type_=_CHECKPOINTS[column].type) for column in ("size_bytes", "seal")}
    return (
        update(tables.checkpoints)
        .where(_CHECKPOINTS.save_id == bindparam("given_save_id"), _CHECKPOINTS.state == "pending")
        .values(state="ready", **given)
        .returning(*CHECKPOINT_ROWS.columns)
    )


@cache
def _project_of_session() -> Select[Any]:  # Any: one column
    sessions = tables.sessions.c
    return select(sessions.project_id).where(sessions.session_id == bindparam("given_session_id"))


def _named(run_id: str, kind: CheckpointKind, name: str) -> tuple[ColumnElement[bool], ...]:
    return (_CHECKPOINTS.run_id == run_id, _CHECKPOINTS.kind == kind, _CHECKPOINTS.name == name)


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
