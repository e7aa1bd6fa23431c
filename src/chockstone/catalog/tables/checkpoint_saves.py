"""Saves of checkpoints in the catalog: from a pending row that only its writer sees to a published one.

An overwrite leaves the old checkpoint as it is until the commit, which moves it to the trash. ``CheckpointTable`` reads
and changes what is published.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cache
from typing import Any, Final

from sqlalchemy import Select, bindparam, delete, or_, select, true, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.sql.dml import ReturningInsert, ReturningUpdate

from chockstone.catalog import schema as tables
from chockstone.catalog.database.database import AnyRow, Database
from chockstone.catalog.database.rows import JsonObject
from chockstone.catalog.errors import CheckpointRowExists, RowMissing
from chockstone.catalog.tables.checkpoint_rows import (
    CHECKPOINT_ROWS,
    CheckpointKind,
    CheckpointRow,
    CheckpointState,
    TrashRow,
    insertion,
    is_published,
    is_visible,
    move_to_trash,
    named,
)
from chockstone.catalog.tables.usage import Use, add_uses

_CHECKPOINTS: Final = tables.checkpoints.c
_BEGUN: Final = tuple(  # the columns that a save begins with
    column.name for column in CHECKPOINT_ROWS.columns if column.name not in ("save_id", "damage", "verified_at", "seal")
)


@dataclass(frozen=True, slots=True)
class Committed:
    checkpoint: CheckpointRow
    replaced: TrashRow | None  # the checkpoint that had its name before


class CheckpointSaves:
    """Begins, publishes and gives up saves."""

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
        replaced = (*named(save.run_id, save.kind, save.name), is_published(), replaceable, still_pending.exists())

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

    async def _own_or_refuse(self, run_id: str, kind: CheckpointKind, name: str, archive: str) -> CheckpointRow:
        query = select(*CHECKPOINT_ROWS.columns).where(*named(run_id, kind, name)).order_by(_CHECKPOINTS.save_id)
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
