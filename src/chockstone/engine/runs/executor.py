"""The executor: what each command does, at its first execution and in a replay.

Everything that a client gets is durable first: the row of a run before its id; the archive and its row before a path.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from datetime import datetime
from typing import Final

import orjson

from chockstone.backends.protocol import LossLimits, PassReply, RunSpec, Worker, Workers
from chockstone.catalog import Catalog, CheckpointRow, RowMissing
from chockstone.engine.crash_suspects import CrashSuspects
from chockstone.engine.custom_losses import CustomLosses
from chockstone.engine.futures import Result
from chockstone.engine.history.points import Measurement, plain_values
from chockstone.engine.history.step_history import StepHistory
from chockstone.engine.progress import ProgressRecorder
from chockstone.engine.runs.commands import (
    CloseRun,
    ForwardBackward,
    Load,
    LoadSource,
    OpenRun,
    Save,
    SnapshotWeights,
    StepOptimizer,
    UnknownCommand,
)
from chockstone.engine.runs.operations import Operation, OperationOutcome
from chockstone.engine.runs.run import Run
from chockstone.engine.runs.saving import Saving
from chockstone.engine.storage.archive_names import ephemeral_name
from chockstone.engine.storage.verification import CheckpointVerifier
from chockstone.telemetry.instruments import Instruments
from chockstone.wire.codecs.pass_request import peek_pass
from chockstone.wire.failures import BadRequest, RequestError, ServerFailure
from chockstone.wire.messages.checkpoints import SkippedCheckpoint
from chockstone.wire.messages.models import CreateModelResponse, UnloadModelResponse
from chockstone.wire.messages.schema import Response
from chockstone.wire.messages.weights import (
    LoadWeightsResponse,
    SaveWeightsExternalResponse,
    SaveWeightsForSamplerResponse,
    SaveWeightsResponse,
)
from chockstone.wire.model_names import ModelName
from chockstone.wire.paths import Kind, TinkerPath

log = logging.getLogger(__name__)
Release = Callable[[], None]
_SAVED: Final = {
    Kind.WEIGHTS: SaveWeightsResponse,
    Kind.SAMPLER_WEIGHTS: SaveWeightsForSamplerResponse,
    Kind.EXTERNAL_WEIGHTS: SaveWeightsExternalResponse,
}

_MICRO_BATCH: Final = "tokens_per_micro_batch"  # fact of a pass that did not fit with the number of the settings


class Executor:
    def __init__(
        self,
        workers: Workers,
        catalog: Catalog,
        saving: Saving,
        verifier: CheckpointVerifier,
        losses: CustomLosses,
        suspects: CrashSuspects,
        progress: ProgressRecorder,
        history: StepHistory,
        instruments: Instruments,
        *,
        now: Callable[[], datetime],
        on_anonymous_sampler: Callable[[str, str], None],
        on_closed: Callable[[Run, Operation], None],
    ) -> None:
        """``on_anonymous_sampler`` is called with a run and a sampling session that was opened on its weights."""
        self._workers = workers
        self._catalog = catalog
        self._saving = saving
        self._verifier = verifier
        self._losses = losses
        self._suspects = suspects
        self._progress = progress
        self._history = history
        self._instruments = instruments
        self._now = now
        self._on_anonymous_sampler = on_anonymous_sampler
        self._on_closed = on_closed

    async def execute(self, run: Run, operation: Operation, release: Release = lambda: None) -> OperationOutcome:
        """Execute the operation in the worker that has the run.

        Raises RequestError, and WorkerLost if another worker is ready by now. ``release`` is called when the lane may
        continue before the end. An operation that has an outcome is replayed: only its effect on the run is repeated.
        One that workers died of runs while no other such operation runs.
        """
        is_suspect = operation.deaths > 0 and operation.outcome is None
        async with self._suspects.alone() if is_suspect else nullcontext():
            return await self._execute(run, operation, release)

    async def _execute(self, run: Run, operation: Operation, release: Release) -> OperationOutcome:
        match operation.command:
            case OpenRun() as command:
                return await self._open(run, operation, command)
            case ForwardBackward() as command:
                return await self._forward_backward(run, operation, command)
            case StepOptimizer() as command:
                return await self._optim_step(run, command)
            case Save() as command:
                return await self._save(run, operation, command, release)
            case SnapshotWeights() as command:
                return await self._snapshot(run, command)
            case Load() as command:
                return await self._load(run, operation, command)
            case CloseRun():
                return await self._close(run, operation)
            case UnknownCommand(name):
                raise BadRequest(f"the journal asks for {name!r}, which this version does not know")

    def _worker_of(self, run: Run) -> Worker:
        return self._workers.replicas[run.replica]

    async def _open(self, run: Run, operation: Operation, command: OpenRun) -> OperationOutcome:
        facts = run.facts
        if operation.outcome is None:
            row = await self._catalog.runs.create(
                facts.session_id,
                facts.model_seq_id,
                owner=facts.owner,
                base_model=facts.base_model,
                spec=facts.spec,
                optimizer_config=facts.optimizer,
                user_metadata=facts.user_metadata,
                project_id=facts.project_id,
                now=self._now(),
            )
            if row.state != "active":
                await self._catalog.runs.set_state(run.run_id, "active")
        if command.load is not None:
            _check_base_model(run, command.load.source)
        worker = self._worker_of(run)
        generation = worker.generation
        await worker.open_run(
            run.run_id,
            owner=run.owner,
            base_model=run.base_model,
            spec=RunSpec.from_json(run.spec),
            must_fit=operation.outcome is None,
            generation=generation,
        )
        run.note_loaded(generation)
        opened = (run.run_id, run.owner, run.base_model, run.spec["rank"])
        if (load := command.load) is not None:
            outcome = await self._load(run, operation, load)
            line = "run opened run=%s owner=%s base_model=%s rank=%s from=%s skipped=%d"
            log.info(line, *opened, load.source.path, len(load.skipped))
            return outcome
        log.info("run opened run=%s owner=%s base_model=%s rank=%s", *opened)
        return _ended(CreateModelResponse(model_id=run.run_id), environment=dict(worker.environment))

    async def _forward_backward(self, run: Run, operation: Operation, command: ForwardBackward) -> OperationOutcome:
        loss_limits: LossLimits = "enforced"
        known = {} if operation.outcome is None else operation.outcome.facts
        if operation.outcome is not None:  # it succeeded before, so it is not refused for its cost now
            loss_limits = "lifted" if command.has_loss_id else "unmetered"
        body = await run.journal.body(operation)
        loss_id = command.loss_id if command.has_loss_id else await _loss_id_in(body)
        async with self._with_loss(run, operation, loss_id):
            reply = await self._worker_of(run).forward_backward(
                run.run_id,
                body,
                elementwise_loss=command.elementwise_loss,
                loss_limits=loss_limits,
                routing_bytes=command.routing_bytes,
                tokens_per_micro_batch=known.get(_MICRO_BATCH),
                is_replay=operation.outcome is not None,
                generation=run.generation,
            )
        self._instruments.computed("forward_backward", reply.seconds)
        run.add_to_backlog(seconds=reply.seconds)
        now, measured = self._now().timestamp(), None
        if reply.loss is not None:
            mean = reply.loss / reply.weight if reply.weight else reply.loss
            run.note_loss(mean)
            measured = Measurement(now, run.steps, _numbers_of(reply, mean, reply.loss))
        result = Result(reply.result, "pass")
        facts = {} if reply.tokens_per_micro_batch is None else {_MICRO_BATCH: reply.tokens_per_micro_batch}
        return OperationOutcome(result, facts, tokens=reply.tokens, ended_at=int(now), measured=measured)

    def _with_loss(self, run: Run, operation: Operation, loss_id: str | None) -> AbstractAsyncContextManager[None]:
        if loss_id is None:
            return nullcontext()
        return self._losses.in_worker(
            loss_id, lambda: run.journal.loss(operation), worker=self._worker_of(run), generation=run.generation
        )

    async def _optim_step(self, run: Run, command: StepOptimizer) -> OperationOutcome:
        reply = await self._worker_of(run).optim_step(run.run_id, command.params, generation=run.generation)
        self._instruments.computed("optim_step", reply.seconds)
        run.add_to_backlog(steps=1, seconds=reply.seconds)
        metrics = dict(reply.metrics)
        run.note_step(int(metrics.get("steps", run.steps)))
        numbers = {name: value for name, value in metrics.items() if name != "steps"} | {"seconds": reply.seconds}
        measured = Measurement(self._now().timestamp(), run.steps, plain_values(numbers))
        # Not an OptimStepResponse: it would turn whole numbers into floats, and replayed bytes must match.
        return OperationOutcome(Result(orjson.dumps({"metrics": metrics, "type": "optim_step"})), measured=measured)

    async def _save(self, run: Run, operation: Operation, command: Save, release: Release) -> OperationOutcome:
        size_bytes = await self._saving.save(run, operation, command, release)
        return _ended(_SAVED[command.path.kind](path=str(command.path), size_bytes=size_bytes))

    async def _snapshot(self, run: Run, command: SnapshotWeights) -> OperationOutcome:
        sampler_id = f"{run.session_id}:sample:{command.sampler_seq_id}"
        archive = ephemeral_name(sampler_id)
        await self._worker_of(run).snapshot(
            run.run_id, archive, reserve_bytes=self._saving.reserve_bytes, generation=run.generation
        )
        await self._catalog.samplers.create(
            run.session_id,
            command.sampler_seq_id,
            owner=run.owner,
            base_model=run.base_model,
            archive=archive,
            now=self._now(),
        )
        self._on_anonymous_sampler(run.run_id, sampler_id)
        return _ended(SaveWeightsForSamplerResponse(sampling_session_id=sampler_id), archive=archive)

    async def _load(self, run: Run, operation: Operation, command: Load) -> OperationOutcome:
        source = command.source
        if operation.outcome is not None:
            row, facts = None, operation.outcome.facts
            archive, step, seal = facts["archive"], facts["step"], facts.get("seal")
        else:
            _check_base_model(run, source)
            row = await self._newest(run, source)
            archive, step, seal = row.archive, row.step or 0, row.seal
        started = time.perf_counter()
        try:
            await self._worker_of(run).load(
                run.run_id,
                archive,
                with_optimizer=command.with_optimizer,
                seal=seal,
                generation=run.generation,
            )
        except RequestError as error:
            if row is not None:
                await self._verifier.found_bad(row, error)
            if error.code == "damaged":
                raise ServerFailure(f"checkpoint {source.path!r}: {error}", code=error.code) from error
            raise
        self._instruments.restored("load", seconds=time.perf_counter() - started)
        run.note_step(step if command.with_optimizer else 0)
        if source.run_id != run.run_id:
            run.note_parent(source.path)
        run.add_to_backlog()
        skipped = [SkippedCheckpoint(path=each.path, reason=each.reason) for each in command.skipped]
        return _ended(
            LoadWeightsResponse(path=source.path, model_id=run.run_id, skipped=skipped or None),
            archive=archive,
            step=step,
            seal=seal,
            environment=dict(self._worker_of(run).environment),
        )

    async def _close(self, run: Run, operation: Operation) -> OperationOutcome:
        await run.all_saved()  # the results of saves come before that of the close in the journal
        await self._worker_of(run).close_run(run.run_id, generation=run.generation)
        await self._progress.flush_ended(run.run_id, run.progress)
        await self._history.sync(run.history)
        await self._catalog.runs.set_state(run.run_id, "unloaded")
        run.lose(f"run {run.run_id!r} was unloaded; resume it from a checkpoint")
        self._on_closed(run, operation)
        log.info("run unloaded run=%s", run.run_id)
        return _ended(UnloadModelResponse(model_id=run.run_id))

    async def _newest(self, run: Run, source: LoadSource) -> CheckpointRow:
        """The checkpoint that has the name now: a save earlier in the lane may have replaced it."""
        await self._saving.written(TinkerPath.parse(source.path))
        try:
            newest = await self._catalog.checkpoints.get(source.run_id, source.kind, source.name, now=self._now())
        except RowMissing as error:
            raise BadRequest(str(error)) from error
        if newest.save_id != source.save_id and not (newest.public or newest.owner == run.owner):
            raise BadRequest(f"checkpoint {source.path!r} was replaced before it could be loaded; ask for it again")
        if newest.state == "damaged":
            raise BadRequest(f"checkpoint {newest.path!r} is damaged: {newest.damage}")
        return newest


def _numbers_of(reply: PassReply, mean: float, total: float) -> dict[str, float]:
    """For the history of the run: its loss, and all metrics of the result."""
    numbers = {"loss": mean, "loss:sum": total, "tokens": reply.tokens, "seconds": reply.seconds}
    return plain_values({name: value for name, value in reply.metrics.items() if name != "tokens:sum"} | numbers)


def _ended(response: Response, **facts: object) -> OperationOutcome:
    return OperationOutcome(Result(response.encode()), facts)


async def _loss_id_in(body: bytes) -> str | None:
    """The custom loss that a pass names, for journals of versions that did not record it."""
    try:
        return (await asyncio.to_thread(peek_pass, body)).loss_id
    except BadRequest:  # the worker refuses it
        return None


def _check_base_model(run: Run, source: LoadSource) -> None:
    if ModelName.parse(source.base_model).base != ModelName.parse(run.base_model).base:
        raise BadRequest(
            f"the checkpoint is of base model {source.base_model!r}, and run {run.run_id!r} of {run.base_model!r}"
        )
