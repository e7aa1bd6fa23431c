"""The life of a checkpoint after its save: publishing, expiry, copies, trash and deletion.

Every removal moves the row to the trash in one transaction. The archive is deleted after that, at once or when the
trash window has passed. A purge that a crash interrupts is repeated. None of this needs the worker.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Final, TypeVar
from weakref import WeakValueDictionary

from chockstone.catalog import (
    SERVER_WIDE,
    Catalog,
    CatalogError,
    CheckpointRow,
    CheckpointRowExists,
    RowMissing,
    TrashRow,
)
from chockstone.catalog.tables.checkpoint_rows import Usage
from chockstone.checkpoints.errors import (
    CheckpointMissing,
    StoreError,
)
from chockstone.engine.audit import AuditLog
from chockstone.engine.config import StorageRules
from chockstone.engine.storage.archive_names import archive_name
from chockstone.engine.storage.archive_storage import ArchiveStorage
from chockstone.engine.storage.quotas import QuotaLedger
from chockstone.engine.storage.shared_bytes import parcels, real_usage_by_run
from chockstone.engine.storage.verification import MISSING, CheckpointVerifier
from chockstone.wire.failures import BadRequest, ServerFailure

log = logging.getLogger(__name__)
T = TypeVar("T")
_AT_ONCE: Final = 500  # trash rows that one purge takes
_OLDEST: Final = 10_000  # trash rows that are looked through for space
_PURGES: Final = 4  # archives deleted at a time
_EVENTS: Final = {"deleted": "checkpoint_deleted", "expired": "checkpoint_expired"}


class CheckpointLifecycle:
    def __init__(
        self,
        catalog: Catalog,
        storage: ArchiveStorage,
        rules: StorageRules,
        quotas: QuotaLedger,
        verifier: CheckpointVerifier,
        audit: AuditLog,
        *,
        now: Callable[[], datetime],
        trusts_ages: Callable[[], bool] = lambda: True,
        is_needed: Callable[[str], bool],
        on_purged: Callable[[str], None],
        on_change: Callable[[str], None],
    ) -> None:
        """``is_needed``: whether a run needs this archive to recover.

        ``on_purged`` is called with each deleted archive, ``on_change`` with each run whose checkpoints retention rules
        may judge differently now.
        """
        self._trusts_ages = trusts_ages
        self._catalog = catalog
        self._storage = storage
        self._rules = rules
        self._quotas = quotas
        self._verifier = verifier
        self._audit = audit
        self._now = now
        self._copying: WeakValueDictionary[tuple[str, str], asyncio.Lock] = WeakValueDictionary()
        self._undeleted: dict[int, datetime] = {}  # save → until when no rule removes it
        self._is_needed = is_needed
        self._on_purged = on_purged
        self._on_change = on_change

    def note_change(self, run_id: str) -> None:
        """The run has one checkpoint more."""
        self._on_change(run_id)

    def purge_at(self, now: datetime) -> datetime:
        """When what is removed now may be deleted."""
        return now + timedelta(seconds=self._rules.trash_seconds)

    async def delete(
        self, rows: Sequence[CheckpointRow], *, reason: str = "deleted", by: str
    ) -> tuple[CheckpointRow, ...]:
        """Remove published checkpoints; returns those that this call removed, since concurrent calls may overlap.

        They are unlisted on return, and deleted from the disk unless there is a trash window, a live sampler uses
        them, or the disk failed: the sweeper retries.
        """
        for owner in {row.owner for row in rows}:
            await self.refuse_aliased({row.path for row in rows if row.owner == owner}, owner=owner)
        trashed = await self.discard(rows, reason=reason, by=by)
        await self.purge_removed(trashed)
        return tuple(each.checkpoint for each in trashed)

    async def refuse_aliased(self, paths: Collection[str], *, owner: str) -> None:
        """Raises BadRequest if an alias of the owner or of the server points at one of these checkpoints."""
        if found := await self._catalog.aliases.pointing_at(paths, owner=owner):
            alias = found[0]
            whose = "server-wide alias" if alias.owner == SERVER_WIDE else "alias"
            option = " --global" if alias.owner == SERVER_WIDE else ""
            raise BadRequest(
                f"{alias.target!r} stays: the {whose} {alias.name!r} points at it. Switch the alias "
                f"with `chockstone alias set{option}`, or remove it with `chockstone alias rm{option} {alias.name}`"
            )

    async def discard(self, rows: Sequence[CheckpointRow], *, reason: str, by: str) -> tuple[TrashRow, ...]:
        """Move them to the trash only. The next ``purge_due`` after the trash window deletes their archives."""
        now = self._now()
        trashed = await self._catalog.checkpoints.discard(rows, reason=reason, now=now, purge_at=self.purge_at(now))
        for each in trashed:
            self._note(_EVENTS.get(reason, "checkpoint_removed"), each.checkpoint, by=by, reason=reason)
        return trashed

    async def purge_removed(self, trashed: Sequence[TrashRow]) -> None:
        """Delete the archives of what was just removed, unless there is a trash window. Never raises."""
        if self._rules.trash_seconds > 0 or not trashed:
            return
        try:
            await self.purge(trashed)
        except CatalogError as error:
            log.warning("removed checkpoints not purged yet count=%d error=%s", len(trashed), error)

    async def purge(self, trashed: Sequence[TrashRow]) -> int:
        """Delete these archives, due or not, and return how many bytes that freed.

        What a live sampler uses stays until its session ends; what was undeleted meanwhile stays.
        """
        return sum(each.size_bytes for each in await self._purge(trashed))

    async def purgeable(self, trashed: Sequence[TrashRow]) -> tuple[TrashRow, ...]:
        """Those that no live sampler uses, and that no run needs to recover."""
        if not trashed:
            return ()
        in_use = await self._catalog.samplers.in_use([each.archive for each in trashed])
        return tuple(each for each in trashed if each.archive not in in_use and not self._is_needed(each.archive))

    async def purge_due(self, *, limit: int | None = None) -> tuple[TrashRow, ...]:
        """Purge and return what is past its trash window; nothing while ages are not trusted."""
        if not self._trusts_ages():
            return ()
        purged: list[TrashRow] = []
        kept: set[int] = set()  # in use, or not to be deleted at the moment
        while limit is None or len(purged) < limit:
            due = await self._catalog.trash.due(now=self._now(), limit=len(kept) + (limit or _AT_ONCE))
            batch = [each for each in due if each.trash_id not in kept]
            if not batch:
                break
            gone = await self._purge(batch)
            kept.update({each.trash_id for each in batch} - {each.trash_id for each in gone})
            purged += gone
        return tuple(purged)

    async def purge_for_space(self, needed_bytes: int) -> int:
        """Empty the trash early, the oldest first, until as many bytes are free; how many became free.

        If all of it were not enough, nothing is purged: it would be lost for nothing.
        """
        trashed = await self.purgeable(await self._catalog.trash.oldest(_OLDEST))
        found = parcels(trashed, await self._storage.look_up([each.archive for each in trashed]))
        if sum(parcel.size_bytes for parcel in found) < needed_bytes:
            return 0
        freed_bytes = 0
        for parcel in found:
            if freed_bytes >= needed_bytes:
                break
            gone = await self._purge(parcel.rows)
            for each in gone:
                log.info("trash purged early path=%s bytes=%d", each.path, each.size_bytes)
            freed_bytes += parcel.size_bytes if len(gone) == len(parcel.rows) else 0
        return freed_bytes

    async def real_usage_by_run(self) -> dict[str, Usage]:
        """Bytes as the disk has them: what copies share counts once, for the run that had it first."""
        holdings = await self._catalog.checkpoints.holdings(self._now())
        entries = await self._storage.look_up(holding.archive for holding in holdings)
        return await asyncio.to_thread(real_usage_by_run, holdings, entries)

    async def list_trash(self, owner: str | None) -> tuple[TrashRow, ...]:
        """Newest first; of everyone when ``owner`` is None."""
        return await self._catalog.trash.list(owner)

    async def undelete(self, trash_id: int, *, name: str | None = None, by: str) -> CheckpointRow:
        """Take a checkpoint out of the trash. Raises RowMissing if it is purged, BadRequest if it does not fit."""
        trashed = await self._catalog.trash.get(trash_id)
        old = trashed.checkpoint
        async with self._quotas.share(old.run_id, old.owner) as share:
            share.check(old.path, old.size_bytes)
            try:
                await self._storage.stat(old.archive)
                row = await self._catalog.trash.undelete(trash_id, name=name, now=self._now())
            except CheckpointMissing:
                raise RowMissing(f"checkpoint {old.path!r} cannot be restored: {MISSING}") from None
            except StoreError as error:
                raise ServerFailure(f"checkpoint {old.path!r} cannot be restored now: {error}") from error
            except CheckpointRowExists as error:
                raise BadRequest(str(error)) from error
        self._undeleted[row.save_id] = self._now() + timedelta(seconds=self._rules.trash_seconds)
        self._note("checkpoint_restored", row, by=by, was=old.path)
        self._on_change(row.run_id)
        return row

    def was_undeleted_lately(self, row: CheckpointRow) -> bool:
        """Whether it was undeleted moments ago: the rule that removed it would remove it again."""
        until = self._undeleted.get(row.save_id)
        if until is not None and until <= self._now():
            del self._undeleted[row.save_id]
            return False
        return until is not None

    async def set_public(self, row: CheckpointRow, *, public: bool, by: str) -> CheckpointRow:
        changed = await self._catalog.checkpoints.set_public(
            row.run_id, row.kind, row.name, public=public, now=self._now()
        )
        self._note("checkpoint_published" if public else "checkpoint_unpublished", changed, by=by)
        self._on_change(row.run_id)  # published ones are kept
        return changed

    async def set_ttl(self, row: CheckpointRow, ttl_seconds: float | None, *, by: str) -> CheckpointRow:
        """Counted from now; None: kept until someone deletes it."""
        if ttl_seconds is not None:
            await self.refuse_aliased({row.path}, owner=row.owner)
        now = self._now()
        expires_at = None if ttl_seconds is None else now + timedelta(seconds=ttl_seconds)
        changed = await self._catalog.checkpoints.set_expiry(row.run_id, row.kind, row.name, expires_at, now=now)
        self._note("checkpoint_ttl_set", changed, by=by, ttl_seconds=ttl_seconds)
        return changed

    async def copy(
        self,
        row: CheckpointRow,
        *,
        owner: str,
        project_id: str | None,
        idempotency_key: str | None = None,
        ttl_seconds: float | None = None,
        by: str,
    ) -> CheckpointRow:
        """The same checkpoint as one of ``owner``'s, in a run of its own that cannot be trained; shares its bytes.

        Asked again with the same key it is the same copy.
        """
        key = (owner, idempotency_key or uuid.uuid4().hex)
        async with self._copying.setdefault(key, asyncio.Lock()):
            return await self._copy(row, owner, project_id, idempotency_key, ttl_seconds, by)

    async def _claimed(self, trashed: Sequence[TrashRow]) -> tuple[TrashRow, ...]:
        """Those that may be deleted now and cannot be undeleted from here on.

        Due ones are claimed, too: an undelete that began before its time was up may not have reached the catalog yet.
        """
        usable = await self.purgeable(trashed)
        recoverable = {each.trash_id for each in usable if each.purge_at > each.discarded_at}
        if not recoverable:
            return usable
        claimed = {each.trash_id for each in await self._catalog.trash.claim(sorted(recoverable))}
        return tuple(each for each in usable if each.trash_id in claimed or each.trash_id not in recoverable)

    async def _purge(self, trashed: Sequence[TrashRow]) -> list[TrashRow]:
        purged: list[TrashRow] = []
        for some in _batches(trashed, _AT_ONCE):
            for few in _batches(await self._claimed(some), _PURGES):
                ended = await asyncio.gather(*map(self._purge_one, few))
                purged += [each for each, is_gone in zip(few, ended, strict=True) if is_gone]
        return purged

    async def _purge_one(self, trashed: TrashRow) -> bool:
        """Whether it is gone."""
        try:
            await self._storage.delete(trashed.archive)
        except StoreError as error:
            log.warning("archive not deleted archive=%s error=%s", trashed.archive, error)
            return False
        self._verifier.forget(trashed.archive)
        self._on_purged(trashed.archive)
        await self._catalog.trash.forget(trashed.trash_id)
        return True

    async def _copy(
        self,
        row: CheckpointRow,
        owner: str,
        project_id: str | None,
        idempotency_key: str | None,
        ttl_seconds: float | None,
        by: str,
    ) -> CheckpointRow:
        now = self._now()
        session = await self._catalog.sessions.create(
            str(uuid.uuid4()),
            owner=owner,
            sdk_version="copy",
            now=now,
            project_id=project_id,
            idempotency_key=None if idempotency_key is None else f"copy:{idempotency_key}",
        )
        await self._catalog.sessions.finish(session.session_id, reason="success", detail=f"copy of {row.path}", now=now)
        run_id = f"{session.session_id}:train:0"
        with suppress(RowMissing):  # the same request again
            return await self._catalog.checkpoints.get(run_id, row.kind, row.name, now=now)
        async with self._quotas.share(run_id, owner) as share:
            share.check(row.path, row.size_bytes)
            await self._catalog.runs.create(
                session.session_id,
                0,
                owner=owner,
                base_model=row.base_model,
                spec=row.spec,
                optimizer_config=row.optimizer_config,
                project_id=session.project_id,
                now=now,
                state="unloaded",
            )
            archive = archive_name(run_id, row.kind, row.name)
            try:
                await self._storage.copy(row.archive, archive)
            except CheckpointMissing:
                await self._verifier.found_missing(row)
                raise RowMissing(f"checkpoint {row.path!r} cannot be copied: {MISSING} any more") from None
            except StoreError as error:
                raise ServerFailure(f"checkpoint {row.path!r} could not be copied: {error}") from error
            try:
                copied = await self._catalog.checkpoint_saves.register(
                    run_id=run_id,
                    kind=row.kind,
                    name=row.name,
                    owner=owner,
                    archive=archive,
                    base_model=row.base_model,
                    spec=row.spec,
                    created_at=now,
                    size_bytes=row.size_bytes,
                    optimizer_config=row.optimizer_config,
                    user_metadata=row.user_metadata,
                    expires_at=None if ttl_seconds is None else now + timedelta(seconds=ttl_seconds),
                    step=row.step,
                    seal=row.seal,
                )
            except CheckpointRowExists:  # no row refers to the archive
                with suppress(StoreError):
                    await self._storage.delete(archive)
                raise
        self._note("checkpoint_copied", copied, by=by, source=row.path)
        return copied

    def _note(self, event: str, row: CheckpointRow, *, by: str, **details: object) -> None:
        facts = {"size_bytes": row.size_bytes, "by": by, **details}
        log.info("%s path=%s %s", event, row.path, " ".join(f"{name}={value}" for name, value in facts.items()))
        self._audit(event, owner=row.owner, run_id=row.run_id, path=row.path, details=facts)


def _batches(rows: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    for start in range(0, len(rows), size):
        yield rows[start : start + size]
