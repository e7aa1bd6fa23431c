"""Saving: writes a run's state as a checkpoint, or leaves nothing behind.

A pending row reserves the name, the worker writes the archive, and the commit publishes it. A path is durable
before a client gets it. Saves that a crash interrupted are committed or removed at the next start.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final
from weakref import WeakValueDictionary

from chockstone.backends.protocol import SaveCall, WorkerLost, Workers
from chockstone.catalog import Catalog, CatalogError, CheckpointRow, CheckpointRowExists, RowMissing
from chockstone.checkpoints.errors import CheckpointError, StoreError
from chockstone.engine.audit import AuditLog
from chockstone.engine.config import StorageRules
from chockstone.engine.runs.commands import Save
from chockstone.engine.runs.operations import Operation
from chockstone.engine.runs.run import Run
from chockstone.engine.storage.archive_names import archive_name
from chockstone.engine.storage.archive_storage import ArchiveStorage
from chockstone.engine.storage.checkpoints import CheckpointLifecycle
from chockstone.engine.storage.quotas import QuotaLedger, QuotaShare, how_to_free
from chockstone.engine.usage import UsageMeter
from chockstone.telemetry import tracing
from chockstone.telemetry.declarations import SaveFailure
from chockstone.telemetry.instruments import Instruments
from chockstone.wire.failures import BadRequest, RequestError
from chockstone.wire.paths import Kind, TinkerPath
from chockstone.wire.sizes import format_bytes

log = logging.getLogger(__name__)
Release = Callable[[], None]
_TIGHT_BYTES: Final = 4 << 30  # with less free space than this, or than a few saves take, the next may not fit
_TIGHT_SAVES: Final = 4


@dataclass(frozen=True, slots=True)
class WrittenCheckpoint:
    """An archive that is durable."""

    size_bytes: int
    seal: str
    stall_seconds: float = 0.0  # that the copy of the state held the compute thread


class Saving:
    def __init__(
        self,
        workers: Workers,
        catalog: Catalog,
        storage: ArchiveStorage,
        checkpoints: CheckpointLifecycle,
        quotas: QuotaLedger,
        rules: StorageRules,
        usage: UsageMeter,
        audit: AuditLog,
        instruments: Instruments,
        *,
        now: Callable[[], datetime],
    ) -> None:
        self._workers = workers
        self._catalog = catalog
        self._storage = storage
        self._checkpoints = checkpoints
        self._quotas = quotas
        self._rules = rules
        self._usage = usage
        self._audit = audit
        self._instruments = instruments
        self._now = now
        self._writing: WeakValueDictionary[TinkerPath, asyncio.Lock] = WeakValueDictionary()
        self._unended: list[CheckpointRow] = []  # failed saves whose rows are still in the catalog

    @property
    def reserve_bytes(self) -> int:
        """Free disk space that no save may use."""
        return self._rules.reserve_bytes

    async def save(self, run: Run, operation: Operation, command: Save, release: Release) -> int:
        """Returns the size of the checkpoint, which is durable and listed then. Raises with nothing left behind.

        ``release`` is called when the lane may continue, usually long before the end. A save that an earlier attempt
        at the same operation completed is not repeated.
        """
        path = command.path
        replaces = path if command.overwrite else None
        async with (
            self._writing.setdefault(path, asyncio.Lock()),  # one at a time under a name
            self._quotas.share(run.run_id, run.owner, replaces=replaces) as share,
        ):
            await self.end_failed()
            request_id = f"{operation.request_id} {run.facts.birth}"
            seq_id = operation.request.seq_id
            archive = archive_name(path.run_id, path.kind, path.name, seq_id, request_id=request_id)
            if operation.is_retry and (saved := await self._find_saved(path, archive)) is not None:
                return saved.size_bytes
            started = time.monotonic()
            row = await self._begin(run, archive, command)
            try:
                written = await self._write_and_commit(run, row, command, share, release)
            except RequestError as error:
                self._instruments.save_failed(row.kind, failure_reason(error))
                raise
        seconds = time.monotonic() - started
        size_bytes, stall_seconds = written.size_bytes, written.stall_seconds
        self._instruments.saved(row.kind, seconds=seconds, stall_seconds=stall_seconds, size_bytes=size_bytes)
        log.info(
            "checkpoint saved run=%s kind=%s name=%s step=%s bytes=%d seconds=%.3f",
            *(row.run_id, row.kind, row.name, row.step, size_bytes, seconds),
        )
        run.note_save(size_bytes)
        self._checkpoints.note_change(run.run_id)
        return size_bytes

    async def store(self, row: CheckpointRow, write: Callable[[], Awaitable[WrittenCheckpoint]]) -> WrittenCheckpoint:
        """Have ``write`` write the archive of a pending row, and publish it. Raises with nothing left behind."""
        try:
            written = await write()
            await self._commit(row, written)
        except BaseException:
            await self._remove(row)
            raise
        return written

    async def written(self, path: TinkerPath) -> None:
        """Wait until no save to this path is in progress."""
        if (lock := self._writing.get(path)) is not None:
            async with lock:
                pass

    async def recover(self) -> None:
        """Commit the unfinished saves of an earlier server whose archive is complete, and remove the others."""
        for row in await self._catalog.checkpoints.list_pending():
            written = await self._find_written(row.archive)
            try:
                if written is not None:
                    await self._commit(row, written)
                    log.warning("unfinished save committed path=%s bytes=%d", row.path, written.size_bytes)
                    continue
            except CheckpointRowExists as error:
                log.warning("unfinished save not committed path=%s error=%s", row.path, error)
            log.warning("unfinished save removed path=%s", row.path)
            await self._remove(row)

    async def end_failed(self) -> None:
        """Remove the rows of failed saves that the catalog could not remove before."""
        unended, self._unended = self._unended, []
        for row in unended:
            await self._remove(row)

    async def _find_saved(self, path: TinkerPath, archive: str) -> CheckpointRow | None:
        with suppress(RowMissing):
            row = await self._catalog.checkpoints.get(path.run_id, path.kind.value, path.name, now=self._now())
            if row.archive == archive:
                return row
        return None

    async def _begin(self, run: Run, archive: str, command: Save) -> CheckpointRow:
        now, path = self._now(), command.path
        try:
            return await self._catalog.checkpoint_saves.begin(
                run.run_id,
                path.kind.value,
                path.name,
                owner=run.owner,
                archive=archive,
                base_model=run.base_model,
                spec=run.spec,
                optimizer_config=run.optimizer,
                user_metadata=command.user_metadata,
                expires_at=None if command.ttl_seconds is None else now + timedelta(seconds=command.ttl_seconds),
                overwrite=command.overwrite,
                step=run.steps,
                now=now,
            )
        except CheckpointRowExists as error:
            raise _name_taken(path) from error

    async def _write_and_commit(
        self, run: Run, row: CheckpointRow, command: Save, share: QuotaShare, release: Release
    ) -> WrittenCheckpoint:
        async def write() -> WrittenCheckpoint:
            try:
                return await self._write(run, row, command, share, release)
            except WorkerLost:
                found = await self._find_written(row.archive)
                if found is None:
                    raise
                return found  # the worker died after the last byte

        return await self.store(row, write)

    async def _commit(self, row: CheckpointRow, written: WrittenCheckpoint) -> None:
        now, size_bytes = self._now(), written.size_bytes
        session_id = row.run_id.partition(":")[0]
        with tracing.span("save.commit", path=row.path, bytes=size_bytes):
            committed = await self._catalog.checkpoint_saves.commit(
                row,
                size_bytes=size_bytes,
                seal=written.seal,
                now=now,
                purge_at=self._checkpoints.purge_at(now),
                use=self._usage.saved(session_id, owner=row.owner, base_model=row.base_model),
            )
        self._note("checkpoint_saved", row, size_bytes=size_bytes)
        if committed.replaced is not None:
            self._note("checkpoint_overwritten", row, size_bytes=committed.replaced.size_bytes)
            await self._checkpoints.purge_removed([committed.replaced])

    async def _write(
        self, run: Run, row: CheckpointRow, command: Save, share: QuotaShare, release: Release
    ) -> WrittenCheckpoint:
        call = SaveCall(
            run_id=run.run_id,
            archive=row.archive,
            kind=row.kind,
            metadata={
                "path": row.path,
                "owner": row.owner,
                "base_model": row.base_model,
                "spec": dict(run.spec),
                "optimizer_config": dict(run.optimizer),
                "user_metadata": dict(command.user_metadata),
            },
            ttl_seconds=command.ttl_seconds,
            recipients=command.recipients,
            allowance_bytes=share.allowance_bytes,
            reserve_bytes=self._rules.reserve_bytes,
        )
        may_have_to_wait = await self._is_tight(run)
        is_released = False

        def let_go() -> None:
            nonlocal is_released
            is_released = True
            release()

        try:
            return await self._call(run, call, (lambda: None) if may_have_to_wait else let_go)
        except RequestError as error:
            if error.code != "no_room":
                raise
            refusal = await self._refusal(row.path, share, error)
            freed_bytes = 0 if refusal.code is None else await self._make_room(error.needed_bytes)
            if is_released or not freed_bytes:  # a second save would hold later operations, too
                raise refusal from error
        try:
            return await self._call(run, call, release)
        except BadRequest as again:
            raise (await self._refusal(row.path, share, again) if again.code == "no_room" else again) from again

    async def _call(self, run: Run, call: SaveCall, on_release: Release) -> WrittenCheckpoint:
        worker = self._workers.replicas[run.replica]
        reply = await worker.save(call, on_release=on_release, generation=run.generation)
        return WrittenCheckpoint(reply.size_bytes, reply.seal, reply.seconds)

    async def _is_tight(self, run: Run) -> bool:
        """Whether the trash may have to be emptied for the save: then the lane waits until the save ends."""
        if self._rules.trash_seconds <= 0:
            return False
        free_bytes = await self._storage.free_bytes()
        wanted = max(_TIGHT_BYTES, _TIGHT_SAVES * run.last_save_bytes) + self._rules.reserve_bytes
        return free_bytes is not None and free_bytes < wanted

    async def _make_room(self, needed_bytes: int | None) -> int:
        """Empty as much of the trash as needed; returns how many bytes that freed, 0 if it cannot be enough."""
        if needed_bytes is None:
            return 0
        try:
            free_bytes = await self._storage.free_bytes()
            missing = 0 if free_bytes is None else needed_bytes + self._rules.reserve_bytes - free_bytes
            if missing <= 0:
                missing = needed_bytes  # the limit is another one, such as a disk quota or that of a bucket
            return await self._checkpoints.purge_for_space(missing)
        except StoreError as error:
            log.warning("trash not emptied for a save error=%s", error)
            return 0

    async def _refusal(self, path: str, share: QuotaShare, error: RequestError) -> BadRequest:
        """Why there is no room. It has a code if the disk is full, where emptying the trash may help."""
        needed, allowance = error.needed_bytes, share.allowance_bytes
        if allowance is not None and needed is not None and needed > allowance:
            return share.refusal(path, needed)
        needs = "more bytes than are left" if needed is None else format_bytes(needed)
        free_bytes = await self._storage.free_bytes()
        if free_bytes is None:
            room = "its store has no more room"
        else:
            reserved = format_bytes(self._rules.reserve_bytes)
            room = f"the disk of this server has {format_bytes(free_bytes)} free, of which {reserved} are reserved"
        return BadRequest(
            f"checkpoint {path!r} needs {needs}: {room}. {how_to_free(TinkerPath.parse(path).run_id)}, and save again.",
            code="no_room",
        )

    async def _find_written(self, archive: str) -> WrittenCheckpoint | None:
        """An archive that exists and is complete, judged by its first and last bytes."""
        try:
            with await self._storage.open(archive) as opened:
                return WrittenCheckpoint(opened.size, opened.seal)
        except CheckpointError:
            return None

    async def _remove(self, row: CheckpointRow) -> None:
        """Remove the row, then the archive. A save that was published after all keeps both."""
        try:
            if not await self._catalog.checkpoint_saves.fail(row):
                return
        except CatalogError as error:
            log.warning("failed save not ended yet path=%s error=%s", row.path, error)
            self._unended.append(row)
            return
        try:
            await self._storage.delete(row.archive)
        except StoreError as error:
            log.warning("archive of a failed save not deleted archive=%s error=%s", row.archive, error)

    def _note(self, event: str, row: CheckpointRow, **details: object) -> None:
        self._audit(event, owner=row.owner, run_id=row.run_id, path=row.path, details={**details, "by": row.owner})


def failure_reason(error: RequestError) -> SaveFailure:
    """Why a save failed, as a metric counts it."""
    if error.code == "no_room":
        return "no_room"
    if isinstance(error, WorkerLost):
        return "worker_lost"
    return "refused" if isinstance(error, BadRequest) else "other"


def _name_taken(path: TinkerPath) -> BadRequest:
    hint = ", or save with overwrite=True" if path.kind is Kind.WEIGHTS else ""
    return BadRequest(f"{path} exists already: choose another name{hint}")
