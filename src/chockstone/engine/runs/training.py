"""Training: the runs of this server, built from their parts, and what clients may ask of them.

Each request of ``TrainingRequests`` returns a request id, and the request is durable then.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Coroutine, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from chockstone.backends.protocol import RunSpec, Worker
from chockstone.catalog import Catalog, CheckpointRow
from chockstone.catalog.tables.losses import LossRow
from chockstone.engine.audit import AuditLog
from chockstone.engine.config import Busy, Durability, EngineLimits, StorageRules
from chockstone.engine.crash_suspects import CrashSuspects
from chockstone.engine.custom_losses import CustomLosses
from chockstone.engine.futures import Futures
from chockstone.engine.journal.journal import JournalWriter
from chockstone.engine.ownership.data_directory import JOURNAL_MARKS, RUN_JOURNALS
from chockstone.engine.runs.commands import (
    CloseRun,
    ForwardBackward,
    Load,
    LoadSource,
    OpenRun,
    Save,
    SnapshotWeights,
    StepOptimizer,
)
from chockstone.engine.runs.executor import Executor
from chockstone.engine.runs.journal_losses import JournalLosses, JournalMarks
from chockstone.engine.runs.rebuild import CatalogRebuild
from chockstone.engine.runs.recovery import RunRecovery
from chockstone.engine.runs.recovery_archives import RecoveryArchives
from chockstone.engine.runs.registry import RunRegistry
from chockstone.engine.runs.run import LiveRuns, Run, RunFacts
from chockstone.engine.runs.run_journal import RunJournals
from chockstone.engine.runs.runner import Runner, Settlement
from chockstone.engine.runs.saving import Saving
from chockstone.engine.runs.unloading import RunUnloader
from chockstone.engine.shutdown import Shutdown
from chockstone.engine.storage.archive_storage import ArchiveStorage
from chockstone.engine.storage.checkpoints import CheckpointLifecycle, SkippedCheckpointRow
from chockstone.engine.storage.quotas import QuotaLedger
from chockstone.engine.usage import UsageMeter
from chockstone.wire.failures import BadRequest
from chockstone.wire.paths import check_name


class TrainingRequests:
    def __init__(self, registry: RunRegistry, runner: Runner) -> None:
        self._registry = registry
        self._runner = runner

    async def open(
        self,
        session_id: str,
        model_seq_id: int,
        *,
        owner: str,
        base_model: str,
        spec: RunSpec,
        optimizer: Mapping[str, Any],
        user_metadata: Mapping[str, str],
        project_id: str | None,
        source: CheckpointRow | None = None,
        with_optimizer: bool = False,
        skipped: Sequence[SkippedCheckpointRow] = (),
    ) -> str:
        """Create a run, perhaps from a checkpoint. A run that exists already is left as it is.

        ``skipped``: newer checkpoints that ``latest`` could not use; the result names them.
        """
        run_id = f"{session_id}:train:{model_seq_id}"
        facts = RunFacts(
            run_id,
            session_id,
            model_seq_id,
            owner,
            base_model,
            spec.to_json(),
            optimizer,
            user_metadata,
            project_id,
            birth=secrets.token_hex(4),
        )
        run = await self._registry.create(facts)
        load = None if source is None else Load(LoadSource.of(source), with_optimizer, tuple(skipped))
        return await self._runner.submit(run, 0, OpenRun(load))

    async def forward_backward(self, run: Run, seq_id: int | None, body: bytes, *, loss: LossRow | None = None) -> str:
        """``loss`` is the custom loss that the request names; it must belong to the run's owner."""
        command = ForwardBackward(None if loss is None else loss.loss_id)
        definition = None if loss is None else loss.definition
        return await self._runner.submit(run, seq_id, command, body, loss=definition)

    async def optim_step(self, run: Run, seq_id: int | None, params: Mapping[str, Any]) -> str:
        return await self._runner.submit(run, seq_id, StepOptimizer(params))

    async def save(self, run: Run, seq_id: int | None, command: Save) -> str:
        """The future resolves when the archive is durable and its row is written."""
        if command.path.is_latest:
            check_name(command.path.name)  # raises BadRequest
        return await self._runner.submit(run, seq_id, command)

    async def save_for_sampling(self, run: Run, seq_id: int | None, sampler_seq_id: int) -> str:
        """Open a sampling session on the weights that the run has when this command is executed."""
        return await self._runner.submit(run, seq_id, SnapshotWeights(sampler_seq_id))

    async def load(
        self,
        run: Run,
        seq_id: int | None,
        source: CheckpointRow,
        *,
        with_optimizer: bool,
        skipped: Sequence[SkippedCheckpointRow] = (),
    ) -> str:
        """``skipped``: newer checkpoints that ``latest`` could not use; the result names them."""
        return await self._runner.submit(run, seq_id, Load(LoadSource.of(source), with_optimizer, tuple(skipped)))

    async def close(self, run: Run) -> str:
        """Unload the run once its operations have ended."""
        run.begin_closing()
        try:
            return await self._runner.submit(run, None, CloseRun(), is_last=True)
        except (BadRequest, Busy):
            run.cancel_closing()
            raise


class RunCore:
    """The parts that run commands. Each part gets the parts that it uses in its constructor."""

    def __init__(
        self,
        worker: Worker,
        catalog: Catalog,
        storage: ArchiveStorage,
        checkpoints: CheckpointLifecycle,
        quotas: QuotaLedger,
        usage: UsageMeter,
        audit: AuditLog,
        losses: CustomLosses,
        futures: Futures,
        suspects: CrashSuspects,
        shutdown: Shutdown,
        runs: LiveRuns,
        *,
        data: Path,
        writer: JournalWriter | None,
        durability: Durability,
        limits: EngineLimits,
        rules: StorageRules,
        now: Callable[[], datetime],
        trusts_ages: Callable[[], bool],
        in_background: Callable[[Coroutine[Any, Any, None]], None],
        on_anonymous_sampler: Callable[[str, str], None],
        on_archive_written: Callable[[], None],
    ) -> None:
        self.archives = RecoveryArchives(worker, storage, durability, rules, on_written=on_archive_written)
        self.marks = JournalMarks(data / JOURNAL_MARKS, catalog, runs)
        journals = RunJournals(data / RUN_JOURNALS, writer, self.marks.file_of)
        self.unloader = RunUnloader(
            *(worker, catalog, runs, journals, self.marks, self.archives),
            in_background=in_background,
            trusts_ages=trusts_ages,
        )
        self.saving = Saving(worker, catalog, storage, checkpoints, quotas, rules, usage, audit, now=now)
        executor = Executor(
            *(worker, catalog, self.saving, checkpoints, usage, losses),
            now=now,
            on_anonymous_sampler=on_anonymous_sampler,
            on_closed=self.unloader.note_closed,
        )
        settlement = Settlement(futures, on_open_failed=self.unloader.note_open_failed)
        recovery = RunRecovery(
            *(worker, catalog, storage, executor, self.archives, limits, suspects, shutdown),
            settle=settlement.settle,
            now=now,
        )
        self.runner = Runner(
            *(futures, limits, executor, recovery, self.archives, settlement, suspects, shutdown),
            on_lost=self.unloader.note_lost,
        )
        self.rebuild = CatalogRebuild(catalog, runs, journals, now=now)
        journal_losses = JournalLosses(catalog, self.marks, self.archives, on_loss=durability.on_journal_loss, now=now)
        self.registry = RunRegistry(
            *(worker, catalog, runs, journals, futures, self.runner, self.archives, self.rebuild),
            *(self.marks, journal_losses, limits),
        )
        self.requests = TrainingRequests(self.registry, self.runner)
