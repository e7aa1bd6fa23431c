"""The life of a checkpoint after its save: reading, publishing, expiry, trash and deletion.

Every removal moves the row to the trash in one transaction. The archive is deleted after that, at once or when the
trash window has passed. A purge that a crash interrupts is repeated. None of this needs the worker.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, TypeVar
from weakref import WeakValueDictionary

from chockstone.catalog import (
    Catalog,
    CatalogError,
    CheckpointKind,
    CheckpointRow,
    CheckpointRowExists,
    RowMissing,
    TrashRow,
)
from chockstone.catalog.tables.checkpoint_rows import Usage
from chockstone.checkpoints.errors import (
    CheckpointError,
    CheckpointMissing,
    DamagedArchive,
    StoreError,
    UnsupportedArchive,
)
from chockstone.checkpoints.restoring.verdicts import Verdict
from chockstone.checkpoints.restoring.walk_back import Ending, WalkBack
from chockstone.engine.audit import AuditLog
from chockstone.engine.config import StorageRules
from chockstone.engine.storage.archive_names import archive_name
from chockstone.engine.storage.archive_storage import ArchiveStorage
from chockstone.engine.storage.quotas import QuotaLedger
from chockstone.engine.storage.shared_bytes import parcels, real_usage_by_run
from chockstone.wire.failures import BadRequest, RequestError, ServerFailure

log = logging.getLogger(__name__)
T = TypeVar("T")
MISSING: Final = "its archive is not in the store"
_AT_ONCE: Final = 500  # trash rows that one purge takes
_OLDEST: Final = 10_000  # trash rows that are looked through for space
_PURGES: Final = 4  # archives deleted at a time
_HISTORY: Final = 20  # checkpoints looked at for the latest, at a time
_TRUSTED_SECONDS: Final = 300.0  # an archive that was read in full is not read again for ``latest``
_TRUSTED: Final = 256
_EVENTS: Final = {"deleted": "checkpoint_deleted", "expired": "checkpoint_expired"}


@dataclass(frozen=True, slots=True)
class SkippedCheckpointRow:
    path: str
    reason: str


@dataclass(frozen=True, slots=True)
class Latest:
    row: CheckpointRow
    skipped: tuple[SkippedCheckpointRow, ...]  # newer ones that cannot be used


class CheckpointLifecycle:
    def __init__(
        self,
        catalog: Catalog,
        storage: ArchiveStorage,
        rules: StorageRules,
        quotas: QuotaLedger,
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
        self._audit = audit
        self._now = now
        self._trusted: OrderedDict[str, datetime] = OrderedDict()  # archive → when it was read in full
        self._reading: dict[tuple[str, float | None], asyncio.Task[str]] = {}  # by archive and rate
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
        trashed = await self.discard(rows, reason=reason, by=by)
        await self.purge_removed(trashed)
        return tuple(each.checkpoint for each in trashed)

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

    async def latest(
        self, run_id: str, kind: CheckpointKind, *, allow: Callable[[CheckpointRow], bool] = lambda _: True
    ) -> Latest:
        """The newest checkpoint that verifies in full, among those that ``allow`` lets the caller see.

        Damaged ones on the way are marked so. Raises RowMissing when none is left, ServerFailure when one cannot
        be read now, and BadRequest when one is of a newer format: nothing older stands in for those.
        """
        walk: WalkBack[CheckpointRow] = WalkBack()
        before: int | None = None
        while rows := await self._catalog.checkpoints.history(
            run_id, kind, now=self._now(), limit=_HISTORY, before_save_id=before, damaged_too=True
        ):
            walk.add(filter(allow, rows))
            for row in walk:
                found = await self._looked_at(row)
                if found is None:
                    walk.reject(Verdict.ABSENT, "it was deleted meanwhile")
                elif found.state == "ready":
                    walk.accept(step=found.step)
                    return Latest(found, _skipped(walk))
                else:
                    walk.reject(Verdict.CORRUPT, found.damage or "it is damaged", step=found.step, is_sure=True)
            before = rows[-1].save_id
        skipped = _skipped(walk)
        why = f": {len(skipped)} are damaged, the newest because {skipped[0].reason}" if skipped else ""
        raise RowMissing(
            f"run {run_id!r} has no checkpoint of kind {kind!r} that can be used{why}",
            code="damaged" if walk.ending is Ending.EXHAUSTED else None,
        )

    async def verify(self, row: CheckpointRow, *, bytes_per_second: float | None = None) -> CheckpointRow:
        """Read all of it and write down what was found; the row as it is then. Raises RowMissing if it was removed."""
        try:
            seal = await self._read_again(row, bytes_per_second)
        except DamagedArchive as error:
            changed = await self.found_damaged(row, str(error))
        except CheckpointMissing:
            changed = await self.found_missing(row)
        except UnsupportedArchive as error:
            raise BadRequest(f"checkpoint {row.path!r} was written by a newer version: {error}") from error
        except CheckpointError as error:
            raise ServerFailure(f"checkpoint {row.path!r} could not be read: {error}") from error
        else:
            changed = await self._found_right(row, seal)
        if changed is None:
            raise RowMissing(f"checkpoint {row.path!r} was removed while it was read")
        return changed

    async def found_bad(self, row: CheckpointRow, error: RequestError) -> None:
        """Record what the worker reported about the archive; a row that was removed meanwhile is left alone."""
        try:
            if error.code == "damaged":
                await self.found_damaged(row, error.reason or str(error))
            elif error.code == "missing":
                await self.found_missing(row)
        except CatalogError as failure:
            log.warning("damage not recorded path=%s error=%s", row.path, failure)

    async def found_damaged(self, row: CheckpointRow, reason: str) -> CheckpointRow | None:
        """Its bytes are not what was written: it stays listed, as damaged. None if it was removed meanwhile."""
        self._trusted.pop(row.archive, None)
        marked = await self._catalog.checkpoints.mark_damaged(row.save_id, reason)
        if marked is not None and (row.state, row.damage) != ("damaged", reason):
            log.warning("checkpoint damaged path=%s archive=%s damage=%s", row.path, row.archive, reason)
            self._audit(
                "checkpoint_damaged", owner=row.owner, run_id=row.run_id, path=row.path, details={"reason": reason}
            )
        return marked

    async def found_missing(self, row: CheckpointRow) -> CheckpointRow | None:
        """Its archive is not there; a row that is still published is marked. None if it was removed meanwhile."""
        return await self.found_damaged(row, MISSING)

    async def _found_right(self, row: CheckpointRow, seal: str) -> CheckpointRow | None:
        if row.seal is None:  # saved before rows had seals: what is there now, and sound, is what it is from here on
            await self._catalog.checkpoints.add_seal(row.save_id, seal)
        if row.state == "damaged":
            log.warning("checkpoint readable again path=%s archive=%s", row.path, row.archive)
            await self._catalog.checkpoints.mark_ready(row.save_id)
        await self._catalog.checkpoints.mark_verified([row.save_id], at=self._now())
        return await self._catalog.checkpoints.get_save(row.save_id)

    async def _looked_at(self, row: CheckpointRow) -> CheckpointRow | None:
        """The row once it has been read in full, lately or now; None if it was removed meanwhile."""
        if row.state == "damaged":
            return row
        read_at = self._trusted.get(row.archive)
        if read_at is not None and (self._now() - read_at).total_seconds() < _TRUSTED_SECONDS:
            return row
        with suppress(RowMissing):
            return await self.verify(row)
        return None

    async def _read_again(self, row: CheckpointRow, bytes_per_second: float | None) -> str:
        """Once more if it is damaged: the fault may have been on the way. Raises what the last reading did."""
        walk = WalkBack([row])
        seal = ""
        for each in walk:
            try:
                seal = await self._read(each, bytes_per_second)
            except CheckpointError as error:
                walk.failed(error)
                if not walk.will_retry:
                    raise
            else:
                walk.accept()
        return seal

    async def _read(self, row: CheckpointRow, bytes_per_second: float | None) -> str:
        """Concurrent requests at the same rate share one reading."""
        archive = row.archive
        key = (archive, bytes_per_second)
        if (reading := self._reading.get(key)) is None:
            verifying = self._storage.verify(archive, bytes_per_second=bytes_per_second, seal=row.seal)
            reading = self._reading[key] = asyncio.create_task(verifying)
            reading.add_done_callback(lambda done: self._read_ended(archive, bytes_per_second, done))
        return await asyncio.shield(reading)

    def _read_ended(self, archive: str, bytes_per_second: float | None, reading: asyncio.Task[str]) -> None:
        del self._reading[archive, bytes_per_second]
        if not reading.cancelled() and reading.exception() is None:
            self._trusted[archive] = self._now()
            self._trusted.move_to_end(archive)
            if len(self._trusted) > _TRUSTED:
                self._trusted.popitem(last=False)

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
        self._trusted.pop(trashed.archive, None)
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
                await self.found_missing(row)
                raise RowMissing(f"checkpoint {row.path!r} cannot be copied: {MISSING} any more") from None
            except StoreError as error:
                raise ServerFailure(f"checkpoint {row.path!r} could not be copied: {error}") from error
            try:
                copied = await self._catalog.checkpoints.register(
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
        told = {"size_bytes": row.size_bytes, "by": by, **details}
        log.info("%s path=%s %s", event, row.path, " ".join(f"{name}={value}" for name, value in told.items()))
        self._audit(event, owner=row.owner, run_id=row.run_id, path=row.path, details=told)


def _skipped(walk: WalkBack[CheckpointRow]) -> tuple[SkippedCheckpointRow, ...]:
    damaged = (look for look in walk.skipped if look.verdict is Verdict.CORRUPT)
    return tuple(SkippedCheckpointRow(look.candidate.path, look.reason) for look in damaged)


def _batches(rows: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    for start in range(0, len(rows), size):
        yield rows[start : start + size]
