"""Saving: a run's state becomes a checkpoint, or leaves nothing behind.

A pending row reserves the name, the worker writes the archive, and the commit publishes it. What is
told to a client is durable first. Saves that a crash cut short are brought to an end at the next start.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final
from weakref import WeakValueDictionary

from chockstone.backends.protocol import SaveCall, Worker, WorkerLost
from chockstone.catalog import Catalog, CatalogError, CheckpointRow, CheckpointRowExists, RowMissing
from chockstone.checkpoints.errors import CheckpointError, StoreError
from chockstone.engine.audit import AuditLog
from chockstone.engine.config import StorageRules
from chockstone.engine.runs.operations import Operation
from chockstone.engine.runs.run import Run
from chockstone.engine.storage.archive_names import archive_name
from chockstone.engine.storage.archive_storage import ArchiveStorage
from chockstone.engine.storage.checkpoints import CheckpointLifecycle
from chockstone.engine.storage.quotas import QuotaLedger, QuotaShare, how_to_free
from chockstone.engine.usage import UsageMeter
from chockstone.wire.failures import BadRequest, RequestError
from chockstone.wire.paths import Kind, TinkerPath
from chockstone.wire.sizes import format_bytes

log = logging.getLogger(__name__)
Release = Callable[[], None]
_TIGHT_BYTES: Final = 4 << 30  # less room than this, or than a few saves need: the next one may not fit
_TIGHT_SAVES: Final = 4


@dataclass(frozen=True, slots=True)
class SaveOrder:
    """What a client asked to be saved, and how."""

    path: TinkerPath
    ttl_seconds: int | None = None
    overwrite: bool = False
    user_metadata: Mapping[str, str] = field(default_factory=dict)
    recipients: tuple[str, ...] = ()  # of external weights: who can read them; none: everyone


@dataclass(frozen=True, slots=True)
class WrittenCheckpoint:
    """An archive that is durable."""

    size_bytes: int
    seal: str


class Saving:
    def __init__(
        self,
        backend: Worker,
        catalog: Catalog,
        storage: ArchiveStorage,
        checkpoints: CheckpointLifecycle,
        quotas: QuotaLedger,
        rules: StorageRules,
        usage: UsageMeter,
        audit: AuditLog,
        *,
        now: Callable[[], datetime],
    ) -> None:
        self._backend = backend
        self._catalog = catalog
        self._storage = storage
        self._checkpoints = checkpoints
        self._quotas = quotas
        self._rules = rules
        self._usage = usage
        self._audit = audit
        self._now = now
        self._writing: WeakValueDictionary[TinkerPath, asyncio.Lock] = WeakValueDictionary()
        self._unended: list[CheckpointRow] = []  # failed saves whose rows the catalog would not let go

    @property
    def reserve_bytes(self) -> int:
        """Of the disk, that nothing is written into."""
        return self._rules.reserve_bytes

    async def save(self, live: Run, operation: Operation, order: SaveOrder, release: Release) -> int:
        """Returns the size of the checkpoint, which is durable and listed then. Raises with nothing left behind.

        ``release`` is called when the run may go on, which is long before the end as a rule. What an
        earlier attempt at the same operation brought to its end is not done again.
        """
        path = order.path
        replaces = path if order.overwrite else None
        async with (
            self._writing.setdefault(path, asyncio.Lock()),  # one at a time under a name
            self._quotas.share(live.run_id, live.owner, replaces=replaces) as share,
        ):
            await self.end_failed()
            request_id = f"{operation.request_id} {live.facts.birth}"
            archive = archive_name(path.run_id, path.kind, path.name, operation.seq_id, request_id=request_id)
            if operation.is_again and (done := await self._find_done(path, archive)) is not None:
                return done.size_bytes
            row = await self._begin(live, archive, order)
            size_bytes = await self._write_and_commit(live, row, order, share, release)
        live.last_save_bytes = size_bytes
        self._usage.saved(live.session_id, owner=live.owner, base_model=live.base_model)
        self._checkpoints.on_change(live.run_id)
        return size_bytes

    async def written(self, path: TinkerPath) -> None:
        """Until no save under this name is under way."""
        if (lock := self._writing.get(path)) is not None:
            async with lock:
                pass

    async def recover(self) -> None:
        """Bring every save of an earlier life to an end: committed if its archive is whole, given up if not."""
        for row in await self._catalog.checkpoints.list_pending():
            written = await self._find_written(row.archive)
            try:
                if written is not None:
                    await self._commit(row, written)
                    log.warning("unfinished save committed path=%s bytes=%d", row.path, written.size_bytes)
                    continue
            except CheckpointRowExists as error:
                log.warning("unfinished save not committed path=%s error=%s", row.path, error)
            log.warning("unfinished save given up path=%s", row.path)
            await self._give_up(row)

    async def end_failed(self) -> None:
        """Free the names of failed saves that the catalog kept, if it lets them go by now."""
        unended, self._unended = self._unended, []
        for row in unended:
            await self._give_up(row)

    async def _find_done(self, path: TinkerPath, archive: str) -> CheckpointRow | None:
        with suppress(RowMissing):
            row = await self._catalog.checkpoints.get(path.run_id, path.kind.value, path.name, now=self._now())
            if row.archive == archive:
                return row
        return None

    async def _begin(self, live: Run, archive: str, order: SaveOrder) -> CheckpointRow:
        now, path = self._now(), order.path
        try:
            return await self._catalog.checkpoints.begin(
                live.run_id,
                path.kind.value,
                path.name,
                owner=live.owner,
                archive=archive,
                base_model=live.base_model,
                spec=live.spec,
                optimizer_config=live.optimizer,
                user_metadata=order.user_metadata,
                expires_at=None if order.ttl_seconds is None else now + timedelta(seconds=order.ttl_seconds),
                overwrite=order.overwrite,
                step=live.steps,
                now=now,
            )
        except CheckpointRowExists as error:
            raise _name_taken(path) from error

    async def _write_and_commit(
        self, live: Run, row: CheckpointRow, order: SaveOrder, share: QuotaShare, release: Release
    ) -> int:
        try:
            try:
                written = await self._write(live, row, order, share, release)
            except WorkerLost:
                found = await self._find_written(row.archive)
                if found is None:
                    raise
                written = found  # the worker died after the last byte
            await self._commit(row, written)
        except BaseException:
            await self._give_up(row)
            raise
        return written.size_bytes

    async def _commit(self, row: CheckpointRow, written: WrittenCheckpoint) -> None:
        now, size_bytes = self._now(), written.size_bytes
        committed = await self._catalog.checkpoints.commit(
            row, size_bytes=size_bytes, seal=written.seal, now=now, purge_at=self._checkpoints.purge_at(now)
        )
        log.info("checkpoint saved path=%s bytes=%d", row.path, size_bytes)
        self._note("checkpoint_saved", row, size_bytes=size_bytes)
        if committed.replaced is not None:
            self._note("checkpoint_overwritten", row, size_bytes=committed.replaced.size_bytes)
            await self._checkpoints.purge_removed([committed.replaced])

    async def _write(
        self, live: Run, row: CheckpointRow, order: SaveOrder, share: QuotaShare, release: Release
    ) -> WrittenCheckpoint:
        call = SaveCall(
            run_id=live.run_id,
            archive=row.archive,
            kind=row.kind,
            metadata={
                "path": row.path,
                "owner": row.owner,
                "base_model": row.base_model,
                "spec": dict(live.spec),
                "optimizer_config": dict(live.optimizer),
                "user_metadata": dict(order.user_metadata),
            },
            ttl_seconds=order.ttl_seconds,
            recipients=order.recipients,
            allowance_bytes=share.allowance_bytes,
            reserve_bytes=self._rules.reserve_bytes,
        )
        may_have_to_wait = await self._is_tight(live)
        has_gone_on = False

        def let_go() -> None:
            nonlocal has_gone_on
            has_gone_on = True
            release()

        try:
            return await self._call(live, call, (lambda: None) if may_have_to_wait else let_go)
        except RequestError as error:
            if error.code != "no_room":
                raise
            refusal = await self._refusal(row.path, share, error)
            freed_bytes = 0 if refusal.code is None else await self._make_room(error.needed_bytes)
            if has_gone_on or not freed_bytes:  # saved again, it would hold what came later
                raise refusal from error
        try:
            return await self._call(live, call, release)
        except BadRequest as again:
            raise (await self._refusal(row.path, share, again) if again.code == "no_room" else again) from again

    async def _call(self, live: Run, call: SaveCall, on_release: Release) -> WrittenCheckpoint:
        reply = await self._backend.save(call, on_release=on_release, generation=live.generation)
        return WrittenCheckpoint(reply.size_bytes, reply.seal)

    async def _is_tight(self, live: Run) -> bool:
        """Whether the save may have to wait until the trash is emptied: then the run waits with it."""
        if self._rules.trash_seconds <= 0:
            return False
        free_bytes = await self._storage.free_bytes()
        wanted = max(_TIGHT_BYTES, _TIGHT_SAVES * live.last_save_bytes) + self._rules.reserve_bytes
        return free_bytes is not None and free_bytes < wanted

    async def _make_room(self, needed_bytes: int | None) -> int:
        """Empty the trash as far as it takes; how many bytes became free. None if that would not be enough."""
        if needed_bytes is None:
            return 0  # nobody can tell what would be
        try:
            free_bytes = await self._storage.free_bytes()
            missing = 0 if free_bytes is None else needed_bytes + self._rules.reserve_bytes - free_bytes
            if missing <= 0:
                missing = needed_bytes  # a limit that no count of free bytes knows, as of a disk quota or a bucket
            return await self._checkpoints.purge_for_space(missing)
        except StoreError as error:
            log.warning("no room made error=%s", error)
            return 0

    async def _refusal(self, path: str, share: QuotaShare, error: RequestError) -> BadRequest:
        """Why there is no room; with a code if it is the disk, which may be helped."""
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
        """An archive that is there and whole, as far as its ends tell."""
        try:
            with await self._storage.open(archive) as opened:
                return WrittenCheckpoint(opened.size, opened.seal)
        except CheckpointError:
            return None

    async def _give_up(self, row: CheckpointRow) -> None:
        """The row first: what is left of the archive is nobody's then. One that was published after all keeps it."""
        try:
            if not await self._catalog.checkpoints.fail(row):
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


def _name_taken(path: TinkerPath) -> BadRequest:
    hint = ", or save with overwrite=True" if path.kind is Kind.WEIGHTS else ""
    return BadRequest(f"{path} exists already: choose another name{hint}")
