"""Weight imports: from an upload to a training checkpoint of a run that is not loaded.

The checkpoint is a training state without its past: the weights, no gradient, and an optimizer that has not stepped.
A run can be created from it, and it can be sampled. It is committed as every save is: whole, or not at all.
"""

from __future__ import annotations

import asyncio
import logging
import math
import uuid
from collections.abc import Awaitable, Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import IO, Any, Final
from weakref import WeakValueDictionary

from chockstone.backends.protocol import LayoutReply, RunSpec, Workers
from chockstone.catalog import Catalog, CheckpointRow, RowExists, RowMissing
from chockstone.checkpoints.errors import AdmissionRefused, StoreError
from chockstone.checkpoints.saving.admission import Admission
from chockstone.engine.config import Busy, StorageRules
from chockstone.engine.imports.checked_files import CheckedFiles, files_of, shapes_of
from chockstone.engine.imports.uploads import WeightUpload, WeightUploads, new_upload_id, not_there
from chockstone.engine.runs.saving import Saving, WrittenCheckpoint
from chockstone.engine.storage.archive_names import archive_name
from chockstone.engine.storage.archive_storage import ArchiveStorage
from chockstone.engine.storage.quotas import QuotaLedger, QuotaShare
from chockstone.wire.failures import BadRequest, ServerFailure
from chockstone.wire.paths import Kind, TinkerPath, check_name

log = logging.getLogger(__name__)
LIFETIME: Final = timedelta(hours=1)
_OPEN_AT_ONCE: Final = 8  # uploads of one user
_SWEEP_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class ImportedWeights:
    checkpoint: CheckpointRow
    receipt: Mapping[str, Any] | None  # Any: plain JSON; None: the import was finished by an earlier request


class WeightImports:
    def __init__(
        self,
        workers: Workers,
        catalog: Catalog,
        storage: ArchiveStorage,
        saving: Saving,
        quotas: QuotaLedger,
        uploads: WeightUploads,
        rules: StorageRules,
        *,
        now: Callable[[], datetime],
        trusts_ages: Callable[[], bool],
        on_change: Callable[[str], None],
    ) -> None:
        """``on_change`` is called with the run of each new checkpoint."""
        self._workers = workers
        self._catalog = catalog
        self._storage = storage
        self._saving = saving
        self._quotas = quotas
        self._uploads = uploads
        self._rules = rules
        self._now = now
        self._trusts_ages = trusts_ages
        self._on_change = on_change
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._receiving: set[tuple[str, str]] = set()  # uploads, and the files of them that are being sent
        self._starting: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()  # by owner

    async def start(
        self,
        *,
        owner: str,
        base_model: str,
        spec: RunSpec,
        optimizer: Mapping[str, Any],  # Any: plain JSON
        project_id: str | None,
        name: str,
    ) -> WeightUpload:
        """Begin an upload, whose files have the sizes that the base model allows. Raises BadRequest."""
        run_id = f"{uuid.uuid4()}:train:0"
        shapes = shapes_of(await self._layout(base_model, spec))
        upload = WeightUpload(
            upload_id=new_upload_id(),
            owner=owner,
            run_id=run_id,
            name=check_name(name),
            base_model=base_model,
            spec=spec.to_json(),
            optimizer=dict(optimizer),
            project_id=project_id,
            files=files_of(spec, shapes),
            expires_at=self._now() + LIFETIME,
        )
        async with self._starting.setdefault(owner, asyncio.Lock()):
            others = [each for each in await asyncio.to_thread(self._uploads.all) if each.owner == owner]
            open_ones = [each for each in others if each.expires_at > self._now() and not await self._is_finished(each)]
            if len(open_ones) >= _OPEN_AT_ONCE:
                raise BadRequest(
                    f"you have {len(open_ones)} uploads that are not finished. Finish one, or wait until they expire, "
                    f"at the latest at {max(each.expires_at for each in open_ones):%Y-%m-%d %H:%M} UTC"
                )
            async with self._quotas.share(run_id, owner) as share:
                pending = sum(each.size_bytes for each in open_ones)
                share.check(_path(upload), pending + sum(4 * math.prod(shape) for shape in shapes.values()))
            await asyncio.to_thread(self._uploads.add, upload, reserve_bytes=self._rules.reserve_bytes)
        return upload

    async def find(self, upload_id: str, file: str, *, owner: str) -> WeightUpload:
        """An upload of the owner that takes such a file. Raises RowMissing."""
        upload = await self._own(upload_id, owner)
        if file not in upload.files:
            raise RowMissing(f"upload {upload_id!r} takes no file {file[:100]!r}; it takes {', '.join(upload.files)}")
        return upload

    async def receive(self, upload: WeightUpload, file: str, fill: Callable[[IO[bytes]], Awaitable[None]]) -> None:
        """Have ``fill`` write a file of the upload. What it raises leaves no file behind.

        Raises Busy while another request sends the same file: each would take its size of the disk.
        """
        place = (upload.upload_id, file)
        if place in self._receiving:
            raise Busy(f"{file!r} of upload {upload.upload_id!r} is being received already; send it again in a moment")
        self._receiving.add(place)
        try:
            await self._receive(upload, file, fill)
        finally:
            self._receiving.discard(place)

    async def _receive(self, upload: WeightUpload, file: str, fill: Callable[[IO[bytes]], Awaitable[None]]) -> None:
        with ExitStack() as open_files:
            part = await asyncio.to_thread(open_files.enter_context, self._uploads.receiving(upload, file))
            try:
                await fill(part)
            except BaseException as error:
                await asyncio.to_thread(open_files.__exit__, type(error), error, error.__traceback__)
                raise
            await asyncio.to_thread(open_files.close)

    async def finish(self, upload_id: str, *, owner: str) -> ImportedWeights:
        """Check the files and commit the checkpoint. Again is once.

        Files that are refused are deleted with their upload. Any other failure keeps them, so the same call may be
        repeated. Raises RowMissing, BadRequest, ServerFailure.
        """
        async with self._locks.setdefault(upload_id, asyncio.Lock()):
            upload = await self._own(upload_id, owner)
            if await self._is_finished(upload):
                await asyncio.to_thread(self._uploads.clear, upload)  # a crash may have left the files
                return ImportedWeights(await self._finished(upload), None)
            await asyncio.to_thread(self._refuse_incomplete, upload)
            layout = await self._layout(upload.base_model, RunSpec.from_json(upload.spec))
            try:
                checked = await asyncio.to_thread(CheckedFiles.open, self._uploads, upload, layout)
            except BadRequest:
                await asyncio.to_thread(self._uploads.remove, upload_id)
                raise
            try:
                row = await self._commit(upload, layout, checked)
            finally:
                await asyncio.to_thread(checked.close)
            await asyncio.to_thread(self._uploads.clear, upload)
        self._on_change(row.run_id)
        log.info("weights imported path=%s bytes=%d owner=%s", row.path, row.size_bytes, owner)
        return ImportedWeights(row, checked.receipt)

    async def keep(self) -> None:
        """Delete expired uploads, for ever."""
        is_start = True
        while True:
            if self._trusts_ages():
                try:
                    for upload_id in await asyncio.to_thread(self._uploads.sweep, self._now(), is_start=is_start):
                        log.info("upload swept upload=%s", upload_id)
                    is_start = False
                except OSError as error:
                    log.warning("uploads not swept error=%s", error)
            await asyncio.sleep(_SWEEP_SECONDS)

    async def _own(self, upload_id: str, owner: str) -> WeightUpload:
        upload = await asyncio.to_thread(self._uploads.get, upload_id)
        if upload.owner != owner or upload.expires_at <= self._now():
            raise not_there(upload_id)
        return upload

    async def _layout(self, base_model: str, spec: RunSpec) -> LayoutReply:
        return await self._workers.replicas[0].layout(base_model, spec)

    async def _finished(self, upload: WeightUpload) -> CheckpointRow:
        return await self._catalog.checkpoints.get(upload.run_id, Kind.WEIGHTS.value, upload.name, now=self._now())

    async def _is_finished(self, upload: WeightUpload) -> bool:
        try:
            await self._finished(upload)
        except RowMissing:
            return False
        return True

    def _refuse_incomplete(self, upload: WeightUpload) -> None:
        for name in upload.files:
            if not self._uploads.path(upload, name).is_file():
                raise BadRequest(
                    f"upload {upload.upload_id!r} lacks {name!r}: PUT the file to its URL, and finish again"
                )

    async def _commit(self, upload: WeightUpload, layout: LayoutReply, checked: CheckedFiles) -> CheckpointRow:
        now, session_id = self._now(), upload.run_id.partition(":")[0]
        with suppress(RowExists):  # an earlier attempt made it
            await self._catalog.sessions.create(
                session_id, owner=upload.owner, sdk_version="import", now=now, project_id=upload.project_id
            )
        await self._catalog.sessions.finish(session_id, reason="success", detail="import of weights", now=now)
        await self._catalog.runs.create(
            session_id,
            0,
            owner=upload.owner,
            base_model=upload.base_model,
            spec=upload.spec,
            optimizer_config=upload.optimizer,
            project_id=upload.project_id,
            now=now,
            state="unloaded",
        )
        kind: Final = "weights"
        async with self._quotas.share(upload.run_id, upload.owner) as share:
            row = await self._catalog.checkpoint_saves.begin(
                upload.run_id,
                kind,
                upload.name,
                owner=upload.owner,
                archive=archive_name(upload.run_id, kind, upload.name, request_id=upload.upload_id),
                base_model=upload.base_model,
                spec=upload.spec,
                optimizer_config=upload.optimizer,
                step=0,
                now=now,
            )
            await self._saving.store(row, lambda: self._write(row, layout, checked, share))
        return await self._finished(upload)

    async def _write(
        self, row: CheckpointRow, layout: LayoutReply, checked: CheckedFiles, share: QuotaShare
    ) -> WrittenCheckpoint:
        admission = Admission(allowance_bytes=share.allowance_bytes, reserve_bytes=self._rules.reserve_bytes)
        weights = dict(checked.fitted.weights)
        state = {"run": dict(layout.run), "weights": weights, "optimizer": {"steps": 0}, "gradient": None}
        metadata = {
            "path": row.path,
            "owner": row.owner,
            "base_model": row.base_model,
            "spec": dict(row.spec),
            "optimizer_config": dict(row.optimizer_config),
            "user_metadata": {},
            "imported": checked.receipt,
        }
        try:
            written = await self._storage.write(
                row.archive,
                state,
                kind=row.kind,
                step=0,
                metadata=metadata,
                created_at=self._now(),
                admission=admission,
            )
        except AdmissionRefused as error:
            if share.allowance_bytes is not None and (error.needed_bytes or 0) > share.allowance_bytes:
                raise share.refusal(row.path, error.needed_bytes or 0) from error
            raise BadRequest(str(error), code="no_room", needed_bytes=error.needed_bytes) from error
        except StoreError as error:
            raise ServerFailure(f"checkpoint {row.path!r} could not be written: {error}") from error
        return WrittenCheckpoint(written.size_bytes, written.seal)


def _path(upload: WeightUpload) -> str:
    return str(TinkerPath.of(upload.run_id, Kind.WEIGHTS, upload.name))
