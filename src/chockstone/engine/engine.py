"""The engine: builds everything that runs behind the API from its parts, starts it and stops it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final

from chockstone.backends.protocol import GapMeter, Workers, WorkerStatus
from chockstone.catalog import Catalog, CatalogError, RowMissing, RunRow
from chockstone.catalog.database.retry import waiting_for_catalog
from chockstone.catalog.tables.losses import LossRow
from chockstone.checkpoints.errors import StoreError
from chockstone.engine.audit import AuditLog
from chockstone.engine.background import BackgroundTasks, Shutdown
from chockstone.engine.config import Busy, Durability, EngineLimits, StorageRules
from chockstone.engine.conversations import Conversations
from chockstone.engine.crash_suspects import CrashSuspects
from chockstone.engine.failure_log import FailureLog
from chockstone.engine.futures import Futures, Promise, Result
from chockstone.engine.history.step_history import StepHistory
from chockstone.engine.imports.uploads import WeightUploads
from chockstone.engine.imports.weight_imports import WeightImports
from chockstone.engine.journal.journal import JournalError, JournalWriter
from chockstone.engine.journal.writer import STALL_SECONDS
from chockstone.engine.ownership.data_directory import (
    CONVERSATIONS,
    HISTORIES,
    RUN_JOURNALS,
    SAMPLE_JOURNAL,
    UPLOADS,
)
from chockstone.engine.presence import Presence
from chockstone.engine.run_removal import RunRemoval
from chockstone.engine.runs.core import RunCore
from chockstone.engine.runs.operations import run_of
from chockstone.engine.runs.recovery.membership import ReplicaMembership
from chockstone.engine.runs.recovery.run_moves import RunMoves
from chockstone.engine.runs.routing_records import RoutingRecords
from chockstone.engine.runs.run import LiveRuns, Run
from chockstone.engine.runs.saving import Saving
from chockstone.engine.samples.anonymous_samplers import AnonymousSamplers
from chockstone.engine.samples.gaps import SamplerGaps
from chockstone.engine.samples.requests import SampledTokens
from chockstone.engine.samples.sample_usage import SampleUsage
from chockstone.engine.samples.sampler_end import SamplerEnd
from chockstone.engine.samples.sampling import SamplerSource, Sampling
from chockstone.engine.session_end import SessionEnd
from chockstone.engine.storage.archive_storage import ArchiveStorage
from chockstone.engine.storage.core import StorageCore
from chockstone.engine.token_rates import TokenRates
from chockstone.engine.usage import UsageMeter
from chockstone.telemetry.instruments import Instruments
from chockstone.telemetry.timings import RecentTimings
from chockstone.wire.failures import RequestError
from chockstone.wire.paths import TinkerPath

log = logging.getLogger(__name__)
_SILENCE_CHECK_SECONDS: Final = 60.0
_PURGED_AT_START: Final = 100  # archives; the sweeper deletes the rest
_WAIT_SECONDS: Final = 0.05
_FINAL_ARCHIVES_SECONDS: Final = 60.0  # for recovery archives at shutdown, which make the next start fast


class Engine:
    def __init__(
        self,
        workers: Workers,
        catalog: Catalog,
        storage: ArchiveStorage,
        *,
        data: Path,
        durability: Durability | None = None,
        limits: EngineLimits | None = None,
        rules: StorageRules | None = None,
        instruments: Instruments | None = None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        monotonic: Callable[[], float] | None = None,
        trusts_ages: Callable[[], bool] = lambda: True,
        on_session_end: Callable[[str], None] = lambda _: None,
        gap_meter: GapMeter | None = None,
    ) -> None:
        """Journals are kept below ``data``. ``monotonic`` measures the silence of clients; None: ``now`` does.

        While ``trusts_ages`` is false, nothing is deleted because of its age. ``on_session_end`` is called with each
        session that is finished. ``gap_meter`` None: no vLLM server samples.
        """
        limits, rules, durability = limits or EngineLimits(), rules or StorageRules(), durability or Durability()
        self.catalog, self.storage, self.rules = catalog, storage, rules
        self.instruments = instruments = instruments or Instruments()
        self.shutdown = Shutdown()
        self._workers, self._now = workers, now
        self._background = BackgroundTasks(self.shutdown)
        self.failures, self.runs = FailureLog(), LiveRuns()
        self.futures = Futures(now=time.monotonic, on_failure=self.failures.record)
        self.timings = RecentTimings()  # of operations by run, and of samples by sampling session
        self.audit, self.usage = AuditLog(catalog, now=now), UsageMeter(catalog, now=now)
        self.history, self.conversations = StepHistory(data / HISTORIES), _conversations(data, rules, durability, now)
        self.gaps = SamplerGaps(catalog, gap_meter, instruments, now=now)
        self.token_rates = TokenRates(monotonic=time.monotonic)
        self.presence = Presence(catalog, now=now, monotonic=monotonic or (lambda: now().timestamp()))
        self._writer = _journal_writer(durability, instruments)
        suspects, routing = CrashSuspects(), RoutingRecords()
        anonymous = AnonymousSamplers(limits, monotonic=time.monotonic)
        self._sample_usage = SampleUsage(self.usage, data / SAMPLE_JOURNAL, self._writer)
        self.sampling = Sampling(
            *(workers, self.futures, limits, self._sample_usage.journal, suspects),
            recover_weights=self._recover_weights,
            on_sampled=self._count_sampled,
            on_recorded=self._sample_usage.count,
            instruments=instruments,
            now=now,
            on_used=anonymous.used,
            on_bad_archive=self._note_bad_archive,
            on_routed=lambda source, records: routing.add(source.owner, source.base_model, records),
            timings=self.timings,
        )
        kept = StorageCore(
            *(catalog, storage, self.audit, rules),
            journals=data / RUN_JOURNALS,
            now=now,
            trusts_ages=trusts_ages,
            is_needed=self.runs.needs,
            on_deleted=self._forget_deleted,
        )
        self.policies, self.verifier, self.checkpoints = kept.policies, kept.verifier, kept.checkpoints
        self.sweeper, self.scrub = kept.sweeper, kept.scrub
        parts = (workers, catalog, storage, self.checkpoints, kept.quotas, rules, self.usage, self.audit, instruments)
        self._saving = Saving(*parts, now=now)
        self.imports = self._make_imports(WeightUploads(data / UPLOADS), kept, trusts_ages)
        self._core = RunCore(
            workers=workers,
            catalog=catalog,
            storage=storage,
            saving=self._saving,
            verifier=self.verifier,
            usage=self.usage,
            history=self.history,
            futures=self.futures,
            suspects=suspects,
            shutdown=self.shutdown,
            background=self._background,
            runs=self.runs,
            data=data,
            writer=self._writer,
            durability=durability,
            limits=limits,
            instruments=instruments,
            now=now,
            trusts_ages=trusts_ages,
            on_anonymous_sampler=anonymous.made,
            on_archive_written=self._purge_in_background,
            on_trained=partial(self.token_rates.count, "trained"),
            routing=routing,
            timings=self.timings,
        )
        self.training, self.losses, self.progress = self._core.requests, self._core.losses, self._core.progress
        self.samplers = SamplerEnd(workers, storage, self.sampling, anonymous, self._background)
        self.sessions = SessionEnd(
            *(catalog, self.runs, self._core, self.samplers, self.checkpoints, self.losses, self.presence, limits),
            self._background,
            now=now,
            trusts_ages=trusts_ages,
            on_end=on_session_end,
        )

    def _make_imports(
        self, uploads: WeightUploads, kept: StorageCore, trusts_ages: Callable[[], bool]
    ) -> WeightImports:
        return WeightImports(
            *(self._workers, self.catalog, self.storage, self._saving, kept.quotas, uploads, self.rules),
            now=self._now,
            trusts_ages=trusts_ages,
            on_change=self.checkpoints.note_change,
        )

    @property
    def moves(self) -> RunMoves:
        """Of runs between the replicas of the worker."""
        return self._core.moves

    @property
    def membership(self) -> ReplicaMembership:
        return self._core.membership

    @property
    def is_stopping(self) -> bool:
        return self.shutdown.has_begun

    @property
    def is_ready(self) -> bool:
        return self._workers.is_ready

    @property
    def trouble(self) -> str | None:
        """Why the worker does not get ready, if several in a row did not."""
        return self._workers.trouble

    @property
    def worker_status(self) -> WorkerStatus:
        return self._workers.status

    @property
    def generation(self) -> int:
        """Number of workers that have become ready so far."""
        return self._workers.generation

    @property
    def environment(self) -> Mapping[str, Any]:
        """What the newest worker that became ready reported of itself; see ``Worker.environment``."""
        return self._workers.environment

    @property
    def journal_trouble(self) -> str | None:
        """Why the journal cannot be written at the moment."""
        return None if self._writer is None else self._writer.trouble

    def holds(self, run: Run) -> bool:
        """Whether a worker that is ready has the run as its last operation left it."""
        worker = self._workers.replicas[run.replica]
        return worker.is_ready and run.generation == worker.generation

    async def journal_sizes(self, run_ids: Sequence[str]) -> dict[str, int]:
        """Bytes on disk of the journals of these runs, live or not."""
        return await self._core.journals.sizes(run_ids)

    @property
    def queued_bytes(self) -> int:
        """Size of the bodies of all requests that have no result yet."""
        return self._core.runner.queued_bytes + self.sampling.queued_bytes

    @property
    def journal_writer(self) -> JournalWriter | None:
        """None: no journal is kept."""
        return self._writer

    async def start(self) -> None:
        """Clean up after the last server and start the worker. Returns before it is ready and runs are recovered."""
        await self.policies.load()
        await self._saving.recover()
        await self._core.rebuild.rebuild_all()
        await self._workers.start()
        self._background.start(self._recover())
        parts = (
            self.presence,
            self.audit,
            self.usage,
            self.sweeper,
            self.scrub,
            self._core.marks,
            self._core.moves,
            self.progress,
            self.history,
            self.failures,
            self.imports,
            self.gaps,
        )
        for part in parts:
            self._background.start(part.keep())
        self._background.start(self._keep_tidy())

    async def stop(self) -> None:
        """Take no new requests, finish running operations, write recovery archives, and end the worker."""
        self.shutdown.begin()
        for run in self.runs:
            run.lane.halt()
        if not self._workers.is_ready:  # nothing runs yet, and what waits for the worker would wait on
            await self._workers.stop()
        await self._drain_lanes()
        await self.sampling.stop()
        self._background.cancel()
        await self._background.drained()
        await self.losses.drained()
        self.conversations.stop()
        try:
            await self._take_last_archives()
            await self._background.drained()  # recovery archives start purges
            await self.history.stop()
            await self._flush()
        finally:
            await self._workers.stop()
            for run in self.runs:
                await run.journal.close()
            if self._writer is not None:
                await self._writer.close()

    async def wake(self, run_id: str) -> Run | None:
        """The run, woken from its journal if it is parked; None: there is no run to wake.

        Raises Busy, and ServerFailure when its journal cannot be read.
        """
        return await self._core.registry.wake(run_id)

    async def remove_run(self, row: RunRow, *, by: str) -> int:
        """Delete a run with its checkpoints; see ``RunRemoval.remove``."""
        removal = RunRemoval(
            self.catalog,
            self._core.ending,
            self._core.unloader,
            self.checkpoints,
            self.audit,
            now=self._now,
        )
        return await removal.remove(row, by=by)

    async def find_promise(self, request_id: str) -> Promise | None:
        """The future of a request, also of one that was made to an earlier server."""
        if (promise := self.futures.get(request_id)) is not None:
            return promise
        if (run_id := run_of(request_id)) is not None:
            if await self.wake(run_id) is None:
                await self._core.registry.load_results(run_id)
        elif ":sample:" in request_id:
            await self.sampling.recovered.wait()
        elif ":loss:" in request_id:
            with suppress(RowMissing):
                self.losses.add(await self.catalog.losses.get(request_id))
        return self.futures.get(request_id)

    def why_waiting(self, request_id: str) -> str | None:
        """Why a request waits, if it is more than the operations before it."""
        if self.shutdown.has_begun:
            return "the server is shutting down; the next one continues the operation"
        if self.journal_trouble is not None:
            return f"the journal cannot be written: {self.journal_trouble}"
        run = None if (run_id := run_of(request_id)) is None else self.runs.get(run_id)
        if run is not None and run.waits_for is not None:
            return run.waits_for
        if not self._workers.is_ready and self._workers.trouble is not None:
            return f"{self._workers.trouble}; it is started again, and the server's log may say more"
        if not self._workers.is_ready:
            return "the worker is being started again" if self._workers.generation else "the models are being loaded"
        return None

    async def _recover(self) -> None:
        """Recover what an earlier server left. Only then may anything be deleted that a run might need."""
        self._background.start(self._recover_samples())
        try:
            await self._core.registry.wake_all()
            await self._core.usage.recover_all()
        finally:
            self._core.usage.recovered.set()
        await self._core.unloader.sweep()
        await self.checkpoints.purge_due(limit=_PURGED_AT_START)

    async def _recover_samples(self) -> None:
        try:
            await self.sampling.recover()
        finally:
            self._sample_usage.recovered.set()

    async def flush_usage(self) -> None:
        """Write the usage so far to the catalog, also that of earlier servers. Raises Busy, CatalogError."""
        try:
            async with asyncio.timeout(STALL_SECONDS):
                await self._core.usage.recovered.wait()
                await self._sample_usage.recovered.wait()
        except TimeoutError:
            raise Busy("the usage before the last restart is still being read; try again in a moment") from None
        await self.usage.flush()

    async def _recover_weights(self, source: SamplerSource) -> bool:
        """Wait for the replay of the run that made weights to sample from: it makes them again if they are missing."""
        if not source.is_anonymous:
            return False
        with waiting_for_catalog(is_over=lambda: self.shutdown.has_begun):
            for row in await self.catalog.runs.list_by_session(source.session_id):
                run = await self._wake_in_time(row.run_id)
                while run is not None and not run.lane.is_idle() and not self.shutdown.has_begun:
                    if self.holds(run):
                        break
                    await asyncio.sleep(_WAIT_SECONDS)
        try:
            return source.archive is None or bool(await self.storage.look_up([source.archive]))
        except StoreError:
            return True  # the store cannot be read at the moment; the worker reports what it finds

    async def _wake_in_time(self, run_id: str) -> Run | None:
        while not self.shutdown.has_begun:
            with suppress(Busy):
                return await self.wake(run_id)
            await asyncio.sleep(_WAIT_SECONDS)
        return None

    async def _drain_lanes(self) -> None:
        """Wait until nothing runs. Does not wait for a journal that cannot be written, or for a dead worker."""
        draining = asyncio.ensure_future(asyncio.gather(*(run.lane.drained() for run in self.runs)))
        while not (await asyncio.wait({draining}, timeout=_WAIT_SECONDS))[0]:
            if self._writer is not None and self._writer.trouble is not None:
                await self._writer.close()
            if not self._workers.is_ready:
                await self._workers.stop()

    async def _take_last_archives(self) -> None:
        """Write recovery archives, so that the next server has nothing to replay."""
        with suppress(TimeoutError, JournalError):
            async with asyncio.timeout(_FINAL_ARCHIVES_SECONDS):
                for run in self.runs:
                    await self._core.archives.unload(run)

    def _purge_in_background(self) -> None:
        """A deleted checkpoint that a replay would have loaded may be purged after a recovery archive."""
        self._background.start(self._purge_due())

    async def _purge_due(self) -> None:
        with suppress(CatalogError):
            await self.checkpoints.purge_due()

    async def _flush(self) -> None:
        try:
            await self._core.marks.flush()
            await self.progress.flush()
            await self.presence.flush()
            await self.audit.flush()
            await self.usage.count_storage()
            await self.usage.flush()
        except CatalogError as error:
            log.error("last audit and usage records not written error=%s", error)

    def worker_lost(self, reason: str, replica: int = 0) -> None:
        """The worker died. Recover the runs that it held in another replica, or in the next worker of this one."""
        self.instruments.worker_died()
        for run in self.runs:
            if run.replica != replica:
                continue
            self._core.placer.note_lost(run)
            if run.generation:
                run.note_worker_lost(reason)
                self._core.runner.queue_recovery(run)

    def _count_sampled(self, used: SampledTokens, sequence: int | None) -> None:
        self.token_rates.count("sampled", used.owner, used.tokens)
        self._sample_usage.count(used, sequence)

    def refuse(self, owner: str, error: RequestError) -> str:
        """A request id whose result is this failure."""
        promise = self.futures.promise(owner)
        self.futures.settle(promise, Result.failed(error), operation="refused")
        return promise.request_id

    def add_loss(self, loss: LossRow) -> str:
        """Have the worker build an uploaded loss. The result is its id, or what is wrong with it."""
        return self.losses.add(loss)

    async def _keep_tidy(self) -> None:
        while True:
            await asyncio.sleep(_SILENCE_CHECK_SECONDS)
            try:
                self.futures.tidy()
                self.samplers.free_superseded()
                await self._saving.end_failed()
                await self._core.unloader.sweep()
                await self.sessions.end_silent()
            except Exception as error:  # noqa: BLE001  # the next time may go better
                log.warning("silent sessions not ended error=%s", error)

    def _forget_deleted(self, archive: str) -> None:
        if self.sampling.forget_archive(archive) and self._workers.is_ready:
            self._background.start(self._free_memory(archive))

    async def _free_memory(self, archive: str) -> None:
        with suppress(RequestError):
            await self._workers.forget(archive)

    def _note_bad_archive(self, source: SamplerSource, error: RequestError) -> None:
        self._background.start(self._mark_bad(source, error))

    async def _mark_bad(self, source: SamplerSource, error: RequestError) -> None:
        """Mark the checkpoint of a sampler whose archive is damaged or missing."""
        with suppress(RowMissing):  # of the sampler, where there was one, or of the checkpoint
            path = (await self.catalog.samplers.get(source.sampling_session_id)).model_path
            if path is None:
                return
            at = TinkerPath.parse(path)
            row = await self.catalog.checkpoints.get(at.run_id, at.kind.value, at.name, now=self._now())
            if row.archive == source.archive:
                await self.verifier.found_bad(row, error)


def _conversations(
    data: Path, rules: StorageRules, durability: Durability, now: Callable[[], datetime]
) -> Conversations:
    return Conversations(
        data / CONVERSATIONS,
        quota_bytes=rules.conversation_quota_bytes,
        reserve_bytes=rules.reserve_bytes,
        synced=durability.journal == "synced",
        now=now,
    )


def _journal_writer(durability: Durability, instruments: Instruments) -> JournalWriter | None:
    if durability.journal == "off":
        return None
    return JournalWriter(synced=durability.journal == "synced", instruments=instruments)
