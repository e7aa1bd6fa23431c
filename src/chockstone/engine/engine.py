"""The engine: everything that runs behind the API, put together, started and stopped."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from chockstone.backends.protocol import Worker
from chockstone.catalog import Catalog, CatalogError, RowMissing
from chockstone.catalog.database.retry import context_that_waits_for_catalog, waiting_for_catalog
from chockstone.catalog.tables.losses import LossRow
from chockstone.checkpoints.errors import StoreError
from chockstone.engine.audit import AuditLog
from chockstone.engine.config import Busy, Durability, EngineLimits, StorageRules
from chockstone.engine.futures import Futures, Promise, Result
from chockstone.engine.journal.journal import JournalError, JournalWriter
from chockstone.engine.ownership.data_directory import JOURNAL_MARKS, RUN_JOURNALS, SAMPLE_JOURNAL
from chockstone.engine.presence import Presence
from chockstone.engine.runs.crash_suspects import CrashSuspects
from chockstone.engine.runs.custom_losses import CustomLosses
from chockstone.engine.runs.execution import Execution
from chockstone.engine.runs.journal_losses import JournalLosses
from chockstone.engine.runs.journal_marks import JournalMarks
from chockstone.engine.runs.live_runs import LiveRuns, Run
from chockstone.engine.runs.operations import run_of
from chockstone.engine.runs.performing import Performing
from chockstone.engine.runs.recovery import RunRecovery
from chockstone.engine.runs.recovery_archives import RecoveryArchives
from chockstone.engine.runs.registry import RunRegistry
from chockstone.engine.runs.training import TrainingRequests
from chockstone.engine.samples.anonymous_samplers import AnonymousSamplers
from chockstone.engine.samples.journal import SampleJournal
from chockstone.engine.samples.sampling import SamplerSource, Sampling
from chockstone.engine.storage.archive_names import ephemeral_name
from chockstone.engine.storage.archive_storage import ArchiveStorage
from chockstone.engine.storage.checkpoints import CheckpointLifecycle
from chockstone.engine.storage.leftovers import Leftovers
from chockstone.engine.storage.policies import PolicyStore
from chockstone.engine.storage.quotas import QuotaLedger
from chockstone.engine.storage.saving import Saving
from chockstone.engine.storage.scrub import Scrub
from chockstone.engine.storage.sweeper import Sweeper
from chockstone.engine.usage import UsageMeter
from chockstone.wire.failures import RequestError, ServerFailure
from chockstone.wire.paths import TinkerPath

log = logging.getLogger(__name__)
_SILENCE_CHECK_SECONDS: Final = 60.0
_PURGED_AT_START: Final = 100  # archives; the sweeper goes on with the rest
_WAIT_SECONDS: Final = 0.05
_FINAL_ARCHIVES_SECONDS: Final = 60.0  # that a stopping server takes for runs to come back fast


class Engine:
    def __init__(
        self,
        backend: Worker,
        catalog: Catalog,
        storage: ArchiveStorage,
        *,
        data: Path,
        durability: Durability | None = None,
        limits: EngineLimits | None = None,
        rules: StorageRules | None = None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        monotonic: Callable[[], float] | None = None,
        trusts_ages: Callable[[], bool] = lambda: True,
    ) -> None:
        """Journals are kept below ``data``. ``monotonic`` is how silence is measured; None: by ``now``. Nothing is
        deleted by its age while it does not hold that ``trusts_ages``."""
        limits, rules, durability = limits or EngineLimits(), rules or StorageRules(), durability or Durability()
        self.catalog = catalog
        self.storage = storage
        self.rules = rules
        self.futures = Futures(now=time.monotonic)
        self.runs = LiveRuns()
        self.audit = AuditLog(catalog, now=now)
        self.usage = UsageMeter(catalog, now=now)
        self.presence = Presence(catalog, now=now, monotonic=monotonic or (lambda: now().timestamp()))
        self.policies = PolicyStore(catalog, rules, now=now)
        quotas = QuotaLedger(catalog, self.policies, now=now)
        self.checkpoints = CheckpointLifecycle(
            catalog, storage, rules, quotas, self.audit, now=now, trusts_ages=trusts_ages
        )
        leftovers = Leftovers(catalog, storage, journals=data / RUN_JOURNALS)
        self.sweeper = Sweeper(
            catalog, storage, self.checkpoints, self.policies, leftovers, rules, now=now, trusts_ages=trusts_ages
        )
        self.scrub = Scrub(catalog, self.checkpoints, rules, now=now)
        self._saving = Saving(
            backend, catalog, storage, self.checkpoints, quotas, rules, self.usage, self.audit, now=now
        )
        self._writer = None if durability.journal == "off" else JournalWriter(synced=durability.journal == "synced")
        suspects = CrashSuspects()
        self.losses = CustomLosses(backend, catalog, self.futures)
        self._execution = Execution(backend, catalog, self._saving, self.checkpoints, self.usage, self.losses, now=now)
        self._archives = RecoveryArchives(backend, storage, durability, rules)
        self._recovery = RunRecovery(
            backend, catalog, storage, self._execution, self._archives, limits, suspects, now=now
        )
        self._performing = Performing(self.futures, limits, self._execution, self._recovery, self._archives, suspects)
        self._marks = JournalMarks(data / JOURNAL_MARKS, catalog, self.runs)
        losses = JournalLosses(catalog, self._marks, self._archives, on_loss=durability.on_journal_loss, now=now)
        self._lifecycle = RunRegistry(
            backend,
            catalog,
            self.runs,
            self.futures,
            self._performing,
            self._archives,
            limits,
            directory=data / RUN_JOURNALS,
            writer=self._writer,
            marks=self._marks,
            losses=losses,
            in_background=self._in_background,
            now=now,
            trusts_ages=trusts_ages,
        )
        self.training = TrainingRequests(self._lifecycle, self._performing)
        samples = None if self._writer is None else SampleJournal(data / SAMPLE_JOURNAL, self._writer)
        self.sampling = Sampling(backend, self.futures, limits, samples, suspects)
        self._unnamed = AnonymousSamplers(limits, monotonic=time.monotonic)
        self.checkpoints.on_change = self.sweeper.saw
        self.checkpoints.on_purged = self._forget_purged
        leftovers.on_freed = self._forget_purged
        self.policies.on_change = self.sweeper.look_at_everything
        self.checkpoints.is_needed = self._lifecycle.needs
        self._execution.on_unnamed = self._unnamed.made
        self._execution.on_closed = self._lifecycle.closed
        self._archives.on_taken = lambda _: self._in_background(self._purge_due())
        self.sampling.set_bring_back(self._bring_weights_back)
        self.sampling.on_sampled = self._sampled
        self.sampling.on_used = self._unnamed.used
        self.sampling.on_bad_archive = self._found_bad
        self.is_stopping = False
        self.on_session_end: Callable[[str], None] = lambda _: None
        self._backend = backend
        self._limits = limits
        self._now = now
        self._trusts_ages = trusts_ages
        self._started_at = now()
        self._tasks: set[asyncio.Task[Any]] = set()

    @property
    def is_ready(self) -> bool:
        return self._backend.is_ready

    @property
    def trouble(self) -> str | None:
        """Why the worker does not get ready, if several in a row did not."""
        return self._backend.trouble

    async def start(self) -> None:
        """Tidy up after the last life, and have the worker start. Returns before it is ready, or any run is back."""
        await self.policies.load()
        await self._saving.recover()
        await self._lifecycle.enter_unknown()
        await self._backend.start()
        self._in_background(self._bring_back())
        for keeper in (self.presence, self.audit, self.usage, self.sweeper, self.scrub, self._marks):
            self._in_background(keeper.keep())
        self._in_background(self._keep_tidy())

    async def stop(self) -> None:
        """Take nothing new, finish what is running, write down what only waits, and end the worker."""
        self.is_stopping = self._performing.is_stopping = self._recovery.is_stopping = True
        for live in self.runs:
            live.lane.halt()
        if not self._backend.is_ready:  # nothing runs yet, and what waits for the worker would wait on
            await self._backend.stop()
        await self._drain_lanes()
        await self.sampling.stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.losses.drained()
        try:
            await self._take_last_archives()
            await asyncio.gather(*self._tasks, return_exceptions=True)  # they tidy up behind those
            await self._flush()
        finally:
            await self._backend.stop()
            for live in self.runs:
                await live.journal.close()
            if self._writer is not None:
                await self._writer.close()

    async def wake(self, run_id: str) -> Run | None:
        """The run, brought back from its journal if it is parked; None: there is none to bring back.

        Raises Busy, and ServerFailure when its journal cannot be read.
        """
        return await self._lifecycle.wake(run_id)

    async def find_promise(self, request_id: str) -> Promise | None:
        """The future of a request, also of one that an earlier server took."""
        if (promise := self.futures.get(request_id)) is not None:
            return promise
        if (run_id := run_of(request_id)) is not None:
            if await self.wake(run_id) is None:
                await self._lifecycle.results_of(run_id)
        elif ":sample:" in request_id:
            await self.sampling.recovered.wait()
        elif ":loss:" in request_id:
            with suppress(RowMissing):
                self.losses.add(await self.catalog.losses.get(request_id))
        return self.futures.get(request_id)

    def why_waiting(self, request_id: str) -> str | None:
        """What holds a request up, if it is more than others before it."""
        if self.is_stopping:
            return "the server is being stopped; the next one goes on with it"
        if self._writer is not None and self._writer.trouble is not None:
            return f"the journal cannot be written: {self._writer.trouble}"
        live = None if (run_id := run_of(request_id)) is None else self.runs.get(run_id)
        if live is not None and (reason := live.hold or live.pause) is not None:
            return reason
        if not self._backend.is_ready and self._backend.trouble is not None:
            return f"{self._backend.trouble}; it is started again, and the server's log may say more"
        if not self._backend.is_ready:
            return "the worker is being started again" if self._backend.generation else "the models are being loaded"
        return None

    async def _bring_back(self) -> None:
        """What an earlier server left undone. Only then is anything deleted that a run might need."""
        self._in_background(self.sampling.recover())
        await self._lifecycle.survey()
        await self._lifecycle.sweep()
        await self.checkpoints.purge_due(limit=_PURGED_AT_START)

    async def _bring_weights_back(self, source: SamplerSource) -> bool:
        """A run that made weights to sample from makes them again when it is replayed, if they were not written."""
        if not source.is_unnamed:
            return False
        with waiting_for_catalog(is_over=lambda: self.is_stopping):
            for row in await self.catalog.runs.list_by_session(source.session_id):
                live = await self._wake_in_time(row.run_id)
                while live is not None and not live.lane.is_idle() and not self.is_stopping:
                    if live.generation == self._backend.generation and self._backend.is_ready:
                        break
                    await asyncio.sleep(_WAIT_SECONDS)
        try:
            return source.archive is None or bool(await self.storage.look_up([source.archive]))
        except StoreError:
            return True  # it cannot be asked at the moment; the worker says what it finds

    async def _wake_in_time(self, run_id: str) -> Run | None:
        while not self.is_stopping:
            with suppress(Busy):
                return await self.wake(run_id)
            await asyncio.sleep(_WAIT_SECONDS)
        return None

    async def _drain_lanes(self) -> None:
        """Until nothing runs. A journal that takes nothing is given up, and so is a worker that is gone."""
        draining = asyncio.ensure_future(asyncio.gather(*(live.lane.drained() for live in self.runs)))
        while not (await asyncio.wait({draining}, timeout=_WAIT_SECONDS))[0]:
            if self._writer is not None and self._writer.trouble is not None:
                await self._writer.close()
            if not self._backend.is_ready:
                await self._backend.stop()

    async def _take_last_archives(self) -> None:
        """So that the next server has nothing to replay."""
        with suppress(TimeoutError, JournalError):
            async with asyncio.timeout(_FINAL_ARCHIVES_SECONDS):
                for live in self.runs:
                    await self._lifecycle.write_down(live)

    async def _purge_due(self) -> None:
        """A checkpoint that was deleted while a run might have had to load it again may go now."""
        with suppress(CatalogError):
            await self.checkpoints.purge_due()

    async def _flush(self) -> None:
        try:
            await self._marks.flush()
            await self.presence.flush()
            await self.audit.flush()
            await self.usage.count_storage()
            await self.usage.flush()
        except CatalogError as error:
            log.error("what was noted and counted last is not written error=%s", error)

    def worker_lost(self, reason: str) -> None:
        """The worker died and took what it held with it. The next one is given it again."""
        for live in self.runs:
            if live.generation:
                live.restore_reason = reason
                self._performing.queue_restore(live)

    def refuse(self, owner: str, error: RequestError) -> str:
        """A request id whose result is this failure."""
        promise = self.futures.promise(owner)
        self.futures.settle(promise, Result.failed(error))
        return promise.request_id

    def add_loss(self, loss: LossRow) -> str:
        """Have the worker build an uploaded loss; the result names it, or says what is wrong with it."""
        return self.losses.add(loss)

    async def finish_session(self, session_id: str) -> None:
        """Free what the session held: its runs and losses, and the weights that only its samplers used.

        Returns at once; what its runs were given before is done first. May be told again.
        """
        self.on_session_end(session_id)
        self.presence.forget_session(session_id)
        self._in_background(self._finish(session_id))

    async def end_silent_sessions(self) -> None:
        """Park the runs whose clients went without a word, and finish sessions that nobody has come back to."""
        await self.presence.flush()
        now = self._now()
        unfinished = {session.session_id: session for session in await self.catalog.sessions.list_unfinished()}
        busy = {live.session_id for live in self.runs if not live.lane.is_idle()}
        for session_id in {live.session_id for live in self.runs} - busy - set(unfinished):
            await self.finish_session(session_id)  # the run was made while its session ended
        for session in unfinished.values():
            if session.session_id in busy:
                continue
            silent = min(
                (now - max(session.last_heartbeat_at, self._started_at)).total_seconds(),
                self.presence.silent_seconds(session.session_id),
            )
            if silent >= self._limits.forget_seconds and self._trusts_ages():
                log.info("session ended after silence session=%s", session.session_id)
                detail = f"nothing was heard of its client for {silent / 86400:.0f} days"
                await self.catalog.sessions.finish(session.session_id, reason="cancelled", detail=detail, now=now)
                await self.finish_session(session.session_id)
            elif silent >= self._limits.park_seconds:
                for live in self.runs:
                    if live.session_id == session.session_id:
                        await self._lifecycle.park(live)

    def free_unnamed_samplers(self) -> None:
        """Delete the weights of samplers without a name that runs have left behind."""
        for sampler_id in self._unnamed.take_left_behind():
            log.info("unnamed sampler freed sampler=%s", sampler_id)
            archive = ephemeral_name(sampler_id)
            self.sampling.forget_archive(archive)
            self._in_background(self._forget(archive))

    async def _keep_tidy(self) -> None:
        while True:
            await asyncio.sleep(_SILENCE_CHECK_SECONDS)
            try:
                self.futures.tidy()
                self.free_unnamed_samplers()
                await self._saving.end_failed()
                await self._lifecycle.sweep()
                await self.end_silent_sessions()
            except Exception as error:  # noqa: BLE001  # the next time may go better
                log.warning("silent sessions not ended error=%s", error)

    async def _finish(self, session_id: str) -> None:
        for row in await self.catalog.runs.list_by_session(session_id):
            live = self.runs.get(row.run_id)
            if live is None and row.state == "parked":
                await self._lifecycle.unload(row.run_id)
            elif live is not None and live.is_stuck:
                await self._lifecycle.discard(live)
            elif live is not None and not live.is_closing:
                self.futures.disown(await self.training.close(live))
        held = [live for live in self.runs if live.session_id == session_id]
        await asyncio.gather(*(live.lane.drained() for live in held))  # they may yet make samplers
        samplers = await self.catalog.samplers.list_by_session(session_id)
        self.sampling.forget_feeds({sampler.sampling_session_id for sampler in samplers})
        self._unnamed.forget([sampler.sampling_session_id for sampler in samplers])
        for sampler in samplers:
            if sampler.archive == ephemeral_name(sampler.sampling_session_id):
                self.sampling.forget_archive(sampler.archive)
                self._in_background(self._forget(sampler.archive))
        if samplers:
            await self.checkpoints.purge_due()  # what was deleted while they used it
        await self.losses.drop(session_id)

    async def _forget(self, archive: str) -> None:
        """The worker may be writing it yet, and then deletes it when it has; one that died has forgotten it."""
        try:
            try:
                await self._backend.forget(archive)
            except ServerFailure:
                await self.storage.delete(archive)
        except StoreError as error:
            log.warning("archive of a sampler not deleted yet archive=%s error=%s", archive, error)

    def _forget_purged(self, archive: str) -> None:
        if self.sampling.forget_archive(archive) and self._backend.is_ready:
            self._in_background(self._free_memory(archive))

    async def _free_memory(self, archive: str) -> None:
        with suppress(RequestError):
            await self._backend.forget(archive)

    def _sampled(self, source: SamplerSource, prompt_tokens: int, tokens: int) -> None:
        self.usage.sampled(
            source.session_id,
            owner=source.owner,
            base_model=source.base_model,
            prompt_tokens=prompt_tokens,
            tokens=tokens,
        )

    def _found_bad(self, source: SamplerSource, error: RequestError) -> None:
        self._in_background(self._write_down(source, error))

    async def _write_down(self, source: SamplerSource, error: RequestError) -> None:
        """A sampler's archive is not what it should be: tell the checkpoint's owner, if it still is one's."""
        with suppress(RowMissing):  # of the sampler, where there was one, or of the checkpoint
            path = (await self.catalog.samplers.get(source.sampling_session_id)).model_path
            if path is None:
                return
            at = TinkerPath.parse(path)
            row = await self.catalog.checkpoints.get(at.run_id, at.kind.value, at.name, now=self._now())
            if row.archive == source.archive:
                await self.checkpoints.found_bad(row, error)

    def _in_background(self, work: Any) -> None:  # Any: a coroutine of any result
        # Nobody would do it again if it failed because the catalog is away.
        context = context_that_waits_for_catalog(is_over=lambda: self.is_stopping)
        task = asyncio.create_task(work, context=context)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("background work failed error=%s", error, exc_info=error)
