"""The run core: builds the parts that run commands, and does for all runs of a session what they offer for one."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from chockstone.backends.protocol import Workers
from chockstone.catalog import Catalog, RowMissing
from chockstone.engine.background import BackgroundTasks, Shutdown
from chockstone.engine.config import Busy, Durability, EngineLimits
from chockstone.engine.crash_suspects import CrashSuspects
from chockstone.engine.custom_losses import CustomLosses
from chockstone.engine.futures import Futures
from chockstone.engine.history.step_history import StepHistory
from chockstone.engine.journal.journal import JournalWriter
from chockstone.engine.journal.writer import Stalled
from chockstone.engine.ownership.data_directory import JOURNAL_MARKS, RUN_JOURNALS
from chockstone.engine.progress import ProgressRecorder
from chockstone.engine.runs.executor import Executor
from chockstone.engine.runs.recovery.archives import RecoveryArchives
from chockstone.engine.runs.recovery.catalog_rebuild import CatalogRebuild
from chockstone.engine.runs.recovery.journal_losses import JournalLosses, JournalMarks
from chockstone.engine.runs.recovery.membership import ReplicaMembership
from chockstone.engine.runs.recovery.recovery import RunRecovery
from chockstone.engine.runs.recovery.run_moves import RunMoves
from chockstone.engine.runs.recovery.run_placer import RunPlacer
from chockstone.engine.runs.recovery.run_usage import RunUsage
from chockstone.engine.runs.registry import RunRegistry
from chockstone.engine.runs.routing_records import RoutingRecords
from chockstone.engine.runs.run import LiveRuns
from chockstone.engine.runs.run_journal import RunJournals
from chockstone.engine.runs.runner import Runner, Settlement
from chockstone.engine.runs.saving import Saving
from chockstone.engine.runs.training import TrainingRequests
from chockstone.engine.runs.unloading import RunEnd, RunUnloader
from chockstone.engine.storage.archive_storage import ArchiveStorage
from chockstone.engine.storage.verification import CheckpointVerifier
from chockstone.engine.usage import UsageMeter
from chockstone.telemetry.instruments import Instruments
from chockstone.telemetry.timings import RecentTimings

log = logging.getLogger(__name__)


class RunCore:
    def __init__(
        self,
        *,
        workers: Workers,
        catalog: Catalog,
        storage: ArchiveStorage,
        saving: Saving,
        verifier: CheckpointVerifier,
        usage: UsageMeter,
        history: StepHistory,
        futures: Futures,
        suspects: CrashSuspects,
        shutdown: Shutdown,
        background: BackgroundTasks,
        runs: LiveRuns,
        data: Path,
        writer: JournalWriter | None,
        durability: Durability,
        limits: EngineLimits,
        instruments: Instruments,
        now: Callable[[], datetime],
        trusts_ages: Callable[[], bool],
        on_anonymous_sampler: Callable[[str, str], None],
        on_archive_written: Callable[[], None],
        on_trained: Callable[[str, int], None],
        routing: RoutingRecords,
        timings: RecentTimings,
    ) -> None:
        self._catalog, self._runs = catalog, runs
        self.archives = RecoveryArchives(
            *(workers, storage, durability, history, instruments),
            reserve_bytes=saving.reserve_bytes,
            on_written=on_archive_written,
        )
        self.marks = JournalMarks(data / JOURNAL_MARKS, catalog, runs)
        self.progress = ProgressRecorder(catalog, of_live_runs=runs.progress)
        self.journals = journals = RunJournals(data / RUN_JOURNALS, writer, self.marks.file_of)
        self.usage = RunUsage(usage, runs, journals, self.marks.file_of, on_trained=on_trained)
        self.unloader = RunUnloader(
            workers,
            catalog,
            runs,
            journals,
            self.marks,
            self.archives,
            self.usage,
            history,
            in_background=background.start,
            trusts_ages=trusts_ages,
        )
        self.losses = CustomLosses(workers, catalog, futures)
        self.placer = RunPlacer(workers, runs)
        executor = Executor(
            workers,
            catalog,
            saving,
            verifier,
            self.losses,
            suspects,
            self.progress,
            history,
            instruments,
            now=now,
            on_anonymous_sampler=on_anonymous_sampler,
            on_closed=self.unloader.note_closed,
        )
        settlement = Settlement(
            *(futures, history, instruments),
            on_settled=self.usage.note_settled,
            on_open_failed=self.unloader.note_open_failed,
        )
        recovery = RunRecovery(
            *(workers, self.placer, catalog, storage, executor, self.archives, limits, shutdown, instruments),
            settle=settlement.settle,
            now=now,
        )
        self.runner = Runner(
            *(futures, limits, executor, recovery, self.archives, settlement, shutdown, instruments),
            timings=timings,
            on_lost=self.unloader.note_lost,
        )
        self.moves = RunMoves(workers, runs, self.archives, queue_recovery=self.runner.queue_recovery)
        self.membership = ReplicaMembership(workers, runs, self.moves, in_background=background.start)
        self.rebuild = CatalogRebuild(catalog, runs, journals, now=now)
        journal_losses = JournalLosses(catalog, self.marks, self.archives, on_loss=durability.on_journal_loss, now=now)
        self.registry = RunRegistry(
            *(catalog, runs, journals, self.runner, self.archives, self.rebuild, self.marks, self.progress),
            *(journal_losses, self.usage, history),
            max_runs=limits.runs,
        )
        self.requests = TrainingRequests(self.registry, self.runner, routing)
        self.ending = RunEnd(runs, self.unloader, self.requests, futures)

    async def end_session(self, session_id: str) -> None:
        """End the runs of a session. On return their operations have ended.

        A run that cannot be ended now, because the server stops or its worker did not close it, is left: the next look
        at silent sessions, or the next server, ends it.
        """
        rows = await self._catalog.runs.list_by_session(session_id)
        unended = [
            row.run_id for row in rows if row.state in ("active", "parked") or self._runs.get(row.run_id) is not None
        ]
        await asyncio.gather(*map(self._end, unended))

    async def _end(self, run_id: str) -> None:
        try:
            await self.ending.end(run_id)
        except RowMissing:  # its owner removed it meanwhile
            return
        except (Busy, Stalled) as error:
            log.warning("run not ended run=%s error=%s", run_id, error)

    async def park_session(self, session_id: str) -> None:
        for run in self._runs:
            if run.session_id == session_id:
                await self.registry.park(run)
