"""Checkpoints: the index of what the store holds, by run, kind and name.

A save begins as a pending row that only its writer sees and is published by its commit. An
overwrite leaves the old checkpoint as it is until that moment; what it replaced is handed to the
caller, who deletes the archive. Rows go first, archives after.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from sqlalchemy import BigInteger, cast, delete, func, insert, literal, or_, select, true, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.sql.elements import ColumnElement

from chockstone.catalog import tables
from chockstone.catalog.checkpoint_row import (
    CHECKPOINT_ROWS,
    CheckpointKind,
    CheckpointRow,
    is_published,
    is_visible,
)
from chockstone.catalog.database import Database
from chockstone.catalog.errors import CheckpointExists, RowMissing
from chockstone.catalog.rows import JsonObject, Page

_CHECKPOINTS: Final = tables.checkpoints.c
_NEWEST_FIRST: Final = (_CHECKPOINTS.created_at.desc(), _CHECKPOINTS.save_id.desc())


@dataclass(frozen=True, slots=True)
class Committed:
    checkpoint: CheckpointRow
    replaced: CheckpointRow | None  # its row is gone; its archive is the caller's to delete


@dataclass(frozen=True, slots=True)
class Usage:
    count: int
    size_bytes: int


class Checkpoints:
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
        """Reserve the name for a save; invisible to all lists until ``commit``.

        A save is known by its archive: begun again, as after a crash, it gets its own row back, in
        whatever state it is by now. ``CheckpointExists`` if another one is being written under the
        name, or is published there and neither expired nor to be overwritten.
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
        # Its own archive is in the way even of an overwrite: that save is done.
        is_own = _CHECKPOINTS.archive == archive
        in_the_way = is_own if overwrite else or_(is_own, is_visible(now))
        taken = select(_CHECKPOINTS.save_id).where(*_named(run_id, kind, name), is_published(), in_the_way).exists()
        columns = [tables.checkpoints.c[column] for column in values]
        source = select(*(literal(value, column.type) for value, column in zip(values.values(), columns, strict=True)))
        creation = insert(tables.checkpoints).from_select(columns, source.where(~taken))
        try:
            [begun] = await self._database.write(creation.returning(*CHECKPOINT_ROWS.columns))
        except IntegrityError:
            begun = ()
        return CHECKPOINT_ROWS.only(begun) or await self._own_or_refuse(run_id, kind, name, archive)

    async def commit(self, save: CheckpointRow, *, size_bytes: int, now: datetime) -> Committed:
        """Publish a save whose archive is durable. Committing twice is committing once.

        ``CheckpointExists`` if another one took the name meanwhile: give the save up with ``fail``.
        """
        other = tables.checkpoints.alias("other")
        still_pending = select(other.c.save_id).where(other.c.save_id == save.save_id, other.c.state == "pending")
        replaceable = true() if save.overwrites else _CHECKPOINTS.expires_at <= now
        replacement = delete(tables.checkpoints).where(
            *_named(save.run_id, save.kind, save.name), is_published(), replaceable, still_pending.exists()
        )
        publication = (
            update(tables.checkpoints)
            .where(_CHECKPOINTS.save_id == save.save_id, _CHECKPOINTS.state == "pending")
            .values(state="ready", size_bytes=size_bytes)
        )
        try:
            replaced, published = await self._database.write(
                replacement.returning(*CHECKPOINT_ROWS.columns), publication.returning(*CHECKPOINT_ROWS.columns)
            )
        except IntegrityError as error:
            raise CheckpointExists(
                f"checkpoint {save.path!r} was published by another save meanwhile; choose another name"
            ) from error
        checkpoint = CHECKPOINT_ROWS.only(published) or await self._ended(save)
        return Committed(checkpoint, CHECKPOINT_ROWS.only(replaced))

    async def fail(self, save: CheckpointRow) -> bool:
        """Give a pending save up; its name is free again. Whether this call did: published ones stay."""
        is_pending = (_CHECKPOINTS.save_id == save.save_id, _CHECKPOINTS.state == "pending")
        surrender = delete(tables.checkpoints).where(*is_pending).returning(_CHECKPOINTS.save_id)
        [given_up] = await self._database.write(surrender)
        return bool(given_up)

    async def remove(self, run_id: str, kind: CheckpointKind, name: str) -> CheckpointRow | None:
        """Take a published checkpoint, expired or not, out of the catalog; None if there is none.

        The archive is the caller's to delete, after this.
        """
        removal = delete(tables.checkpoints).where(*_named(run_id, kind, name), is_published())
        [removed] = await self._database.write(removal.returning(*CHECKPOINT_ROWS.columns))
        return CHECKPOINT_ROWS.only(removed)

    async def get(self, run_id: str, kind: CheckpointKind, name: str, *, now: datetime) -> CheckpointRow:
        """A published checkpoint, ready or damaged; ``RowMissing`` if it expired."""
        found = await CHECKPOINT_ROWS.find(self._database, *_named(run_id, kind, name), is_published())
        checkpoint = _present(run_id, kind, name, found)
        if checkpoint.is_expired(now):
            raise RowMissing(
                f"checkpoint {checkpoint.path!r} expired at {checkpoint.expires_at:%Y-%m-%d %H:%M} UTC; "
                f"save with a longer ttl_seconds, or none, to keep one"
            )
        return checkpoint

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

    async def list_by_run(self, run_id: str, *, now: datetime) -> tuple[CheckpointRow, ...]:
        """All that are published and not expired, newest first."""
        query = select(*CHECKPOINT_ROWS.columns).where(_CHECKPOINTS.run_id == run_id, is_visible(now))
        return await CHECKPOINT_ROWS.read(self._database, query.order_by(*_NEWEST_FIRST))

    async def list(self, owner: str | None, *, limit: int, now: datetime, offset: int = 0) -> Page[CheckpointRow]:
        """Published and not expired, newest first; of everyone when ``owner`` is None."""
        where = [is_visible(now)] if owner is None else [is_visible(now), _CHECKPOINTS.owner == owner]
        return await CHECKPOINT_ROWS.read_page(
            self._database, *where, order_by=_NEWEST_FIRST, limit=limit, offset=offset
        )

    async def list_pending(self) -> tuple[CheckpointRow, ...]:
        """Saves without an end: under way, or left by a crash. Oldest first."""
        query = select(*CHECKPOINT_ROWS.columns).where(~is_published()).order_by(_CHECKPOINTS.save_id)
        return await CHECKPOINT_ROWS.read(self._database, query)

    async def list_expired(self, *, now: datetime, limit: int) -> tuple[CheckpointRow, ...]:
        """Published ones to remove, longest expired first."""
        query = select(*CHECKPOINT_ROWS.columns).where(is_published(), _CHECKPOINTS.expires_at <= now)
        return await CHECKPOINT_ROWS.read(
            self._database, query.order_by(_CHECKPOINTS.expires_at, _CHECKPOINTS.save_id).limit(limit)
        )

    async def usage(self, *, now: datetime, owner: str | None = None, run_id: str | None = None) -> Usage:
        """Of all that is published and not expired, or of an owner's or a run's share of it."""
        size = cast(func.coalesce(func.sum(_CHECKPOINTS.size_bytes), 0), BigInteger)
        query = select(func.count(), size).select_from(tables.checkpoints).where(is_visible(now))
        if owner is not None:
            query = query.where(_CHECKPOINTS.owner == owner)
        if run_id is not None:
            query = query.where(_CHECKPOINTS.run_id == run_id)
        [[count, size_bytes]] = await self._database.read(query)
        return Usage(count, size_bytes)

    async def set_expiry(
        self, run_id: str, kind: CheckpointKind, name: str, expires_at: datetime | None, *, now: datetime
    ) -> CheckpointRow:
        """None: kept until someone deletes it. What expired before ``now`` stays so."""
        return await self._change(run_id, kind, name, now=now, expires_at=expires_at)

    async def set_public(
        self, run_id: str, kind: CheckpointKind, name: str, *, public: bool, now: datetime
    ) -> CheckpointRow:
        return await self._change(run_id, kind, name, now=now, public=public)

    async def set_damaged(
        self, run_id: str, kind: CheckpointKind, name: str, damage: str, *, now: datetime
    ) -> CheckpointRow:
        """Still listed, so that its owner learns of it, and never the latest."""
        return await self._change(run_id, kind, name, now=now, state="damaged", damage=damage)

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
            raise CheckpointExists(f"checkpoint {path!r} is being written by another save; choose another name")
        raise CheckpointExists(f"checkpoint {path!r} exists already; choose another name, or overwrite it")

    async def _ended(self, save: CheckpointRow) -> CheckpointRow:
        found = await CHECKPOINT_ROWS.find(self._database, _CHECKPOINTS.save_id == save.save_id)
        if found is None:
            raise RowMissing(
                f"save {save.save_id!r} of checkpoint {save.path!r} is not in this catalog: it was given up, "
                f"or its checkpoint was replaced or deleted since. Save again."
            )
        return found


def _named(run_id: str, kind: CheckpointKind, name: str) -> tuple[ColumnElement[bool], ...]:
    return (_CHECKPOINTS.run_id == run_id, _CHECKPOINTS.kind == kind, _CHECKPOINTS.name == name)


def _present(run_id: str, kind: str, name: str, checkpoint: CheckpointRow | None) -> CheckpointRow:
    if checkpoint is None:
        raise RowMissing(f"checkpoint 'tinker://{run_id}/{kind}/{name}' is not in this catalog; list those of its run")
    return checkpoint
