"""Execution: what each operation does, the first time and every other time.

What is told to a client is durable first: the row of a run before its id, the archive and then its
row before a path.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Final

import orjson

from chockstone.backends.protocol import LossLimits, PassReply, RunSpec, StepReply, Worker
from chockstone.catalog import Catalog, CheckpointKind, CheckpointRow, RowMissing
from chockstone.engine.futures import Result
from chockstone.engine.runs.custom_losses import CustomLosses
from chockstone.engine.runs.operations import Operation, OperationOutcome
from chockstone.engine.runs.run import Run
from chockstone.engine.storage.archive_names import ephemeral_name
from chockstone.engine.storage.checkpoints import CheckpointLifecycle
from chockstone.engine.storage.saving import SaveOrder, Saving
from chockstone.engine.usage import UsageMeter
from chockstone.wire.codecs.pass_request import peek_pass
from chockstone.wire.failures import BadRequest, RequestError, ServerFailure
from chockstone.wire.model_names import ModelName
from chockstone.wire.paths import Kind, TinkerPath

log = logging.getLogger(__name__)
Release = Callable[[], None]
_SAVED: Final = {
    Kind.WEIGHTS: "save_weights",
    Kind.SAMPLER_WEIGHTS: "save_weights_for_sampler",
    Kind.EXTERNAL_WEIGHTS: "save_weights_external",
}


@dataclass(frozen=True, slots=True)
class LoadSource:
    """A checkpoint to load, as it was when it was asked for."""

    run_id: str
    kind: CheckpointKind
    name: str
    path: str
    save_id: int
    base_model: str

    @classmethod
    def of(cls, row: CheckpointRow) -> LoadSource:
        return cls(row.run_id, row.kind, row.name, row.path, row.save_id, row.base_model)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


class Execution:
    def __init__(
        self,
        backend: Worker,
        catalog: Catalog,
        saving: Saving,
        checkpoints: CheckpointLifecycle,
        usage: UsageMeter,
        losses: CustomLosses,
        *,
        now: Callable[[], datetime],
    ) -> None:
        self._backend = backend
        self._catalog = catalog
        self._saving = saving
        self._checkpoints = checkpoints
        self._usage = usage
        self._losses = losses
        self._now = now
        self._words: dict[str, Callable[[Run, Operation, Release], Awaitable[OperationOutcome]]] = {
            "open": self._open,
            "pass": self._pass,
            "optim_step": self._optim_step,
            "save": self._save,
            "snapshot": self._snapshot,
            "load": self._load,
            "close": self._close,
        }
        self.on_unnamed: Callable[[str, str], None] = lambda _run, _sampler: None  # weights to sample from were made
        self.on_closed: Callable[[Run, Operation], None] = lambda _live, _operation: None

    async def execute(self, live: Run, operation: Operation, release: Release = lambda: None) -> OperationOutcome:
        """Do it, in the worker that has the run. Raises RequestError, and WorkerLost if the worker is another by now.

        ``release`` is called when the run may go on, if that is before the end. An operation that has a
        trace was done before: only what it did to the run is done again.
        """
        if (work := self._words.get(operation.word)) is None:
            raise BadRequest(f"the journal asks for {operation.word!r}, which this version does not know")
        return await work(live, operation, release)

    async def _open(self, live: Run, operation: Operation, _: Release) -> OperationOutcome:
        facts = live.facts
        if operation.trace is None:
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
                await self._catalog.runs.set_state(live.run_id, "active")
        source = operation.values.get("source")
        if source is not None:
            _check_base_model(live, LoadSource(**source))
        generation = self._backend.generation
        await self._backend.open_run(
            live.run_id,
            owner=live.owner,
            base_model=live.base_model,
            spec=RunSpec.from_json(live.spec),
            generation=generation,
        )
        live.generation = generation
        told = f"run={live.run_id} owner={live.owner} base_model={live.base_model} rank={live.spec['rank']}"
        if source is not None:
            outcome = await self._load(live, operation, _)
            log.info("run opened %s from=%s skipped=%d", told, source["path"], len(operation.values["skipped"]))
            return outcome
        log.info("run opened %s", told)
        return OperationOutcome(
            _json(model_id=live.run_id, type="create_model"), {"environment": dict(self._backend.environment)}
        )

    async def _pass(self, live: Run, operation: Operation, _: Release) -> OperationOutcome:
        # A replay gives the bytes that were given before: versions before this one sent no losses per position.
        elementwise_loss = operation.values.get("elementwise_loss", False)
        loss_limits: LossLimits = "enforced"
        if operation.trace is not None:  # it succeeded before, so it is not refused for its cost now
            loss_limits = "lifted" if "loss_id" in operation.values else "unmetered"
        body = await live.journal.body(operation)
        loss_id = operation.loss_id if "loss_id" in operation.values else await _custom_loss(body)
        async with self._with_loss(live, operation, loss_id):
            reply = await self._backend.forward_backward(
                live.run_id,
                body,
                elementwise_loss=elementwise_loss,
                loss_limits=loss_limits,
                generation=live.generation,
            )
        _owe(live, reply)
        if operation.trace is None:
            self._usage.trained(live.session_id, owner=live.owner, base_model=live.base_model, tokens=reply.tokens)
        return OperationOutcome(Result(reply.result, "pass"))

    def _with_loss(self, live: Run, operation: Operation, loss_id: str | None) -> AbstractAsyncContextManager[None]:
        if loss_id is None:
            return nullcontext()
        return self._losses.in_worker(loss_id, lambda: live.journal.loss(operation), generation=live.generation)

    async def _optim_step(self, live: Run, operation: Operation, _: Release) -> OperationOutcome:
        params = operation.values["params"]
        reply = await self._backend.optim_step(live.run_id, params, generation=live.generation)
        _owe(live, reply)
        live.debt.steps += 1
        metrics = reply.metrics
        live.steps = int(metrics.get("steps", live.steps))
        return OperationOutcome(_json(metrics=metrics, type="optim_step"))

    async def _save(self, live: Run, operation: Operation, release: Release) -> OperationOutcome:
        values = operation.values
        path = TinkerPath.parse(values["path"])
        order = SaveOrder(
            path, values["ttl_seconds"], values["overwrite"], values["user_metadata"], tuple(values["recipients"])
        )
        size_bytes = await self._saving.save(live, operation, order, release)
        return OperationOutcome(_json(path=str(path), size_bytes=size_bytes, type=_SAVED[path.kind]))

    async def _snapshot(self, live: Run, operation: Operation, _: Release) -> OperationOutcome:
        sampler_seq_id = operation.values["sampler_seq_id"]
        sampler_id = f"{live.session_id}:sample:{sampler_seq_id}"
        archive = ephemeral_name(sampler_id)
        await self._backend.snapshot(
            live.run_id, archive, reserve_bytes=self._saving.reserve_bytes, generation=live.generation
        )
        await self._catalog.samplers.create(
            live.session_id,
            sampler_seq_id,
            owner=live.owner,
            base_model=live.base_model,
            archive=archive,
            now=self._now(),
        )
        self.on_unnamed(live.run_id, sampler_id)
        return OperationOutcome(
            _json(sampling_session_id=sampler_id, type="save_weights_for_sampler"), {"archive": archive}
        )

    async def _load(self, live: Run, operation: Operation, _: Release) -> OperationOutcome:
        source = LoadSource(**operation.values["source"])
        if operation.trace is not None:
            facts = operation.trace.facts
            archive, step, seal = facts["archive"], facts["step"], facts.get("seal")
        else:
            _check_base_model(live, source)
            row = await self._newest(live, source)
            archive, step, seal = row.archive, row.step or 0, row.seal
        with_optimizer = operation.values["with_optimizer"]
        try:
            await self._backend.load(
                live.run_id, archive, with_optimizer=with_optimizer, seal=seal, generation=live.generation
            )
        except RequestError as error:
            if operation.trace is None:
                await self._checkpoints.found_bad(row, error)
            if error.code == "damaged":
                raise ServerFailure(f"checkpoint {source.path!r}: {error}", code=error.code) from error
            raise
        live.steps = step if with_optimizer else 0
        live.debt.operations += 1
        told = {"path": source.path, "model_id": live.run_id, "type": "load_weights"}
        if operation.values["skipped"]:
            told["skipped"] = operation.values["skipped"]
        environment = dict(self._backend.environment)
        return OperationOutcome(
            _json(**told), {"archive": archive, "step": step, "seal": seal, "environment": environment}
        )

    async def _close(self, live: Run, operation: Operation, _: Release) -> OperationOutcome:
        await live.all_written()  # a save that goes on beside its run has its result in the journal first
        await self._backend.close_run(live.run_id, generation=live.generation)
        await self._catalog.runs.set_state(live.run_id, "unloaded")
        live.problem = f"run {live.run_id!r} was unloaded; resume it from a checkpoint"
        self.on_closed(live, operation)
        log.info("run unloaded run=%s", live.run_id)
        return OperationOutcome(_json(model_id=live.run_id, type="unload_model"))

    async def _newest(self, live: Run, source: LoadSource) -> CheckpointRow:
        """What has the name now: a save ahead in the lane may have replaced it since it was asked for."""
        await self._saving.written(TinkerPath.parse(source.path))
        try:
            newest = await self._catalog.checkpoints.get(source.run_id, source.kind, source.name, now=self._now())
        except RowMissing as error:
            raise BadRequest(str(error)) from error
        if newest.save_id != source.save_id and not (newest.public or newest.owner == live.owner):
            raise BadRequest(f"checkpoint {source.path!r} was replaced before it could be loaded; ask for it again")
        if newest.state == "damaged":
            raise BadRequest(f"checkpoint {newest.path!r} is damaged: {newest.damage}")
        return newest


def _owe(live: Run, reply: PassReply | StepReply) -> None:
    live.debt.operations += 1
    live.debt.seconds += reply.seconds


async def _custom_loss(body: bytes) -> str | None:
    """Which one a pass uses, in a journal of a version that did not write it beside the body."""
    try:
        return (await asyncio.to_thread(peek_pass, body)).loss_id
    except BadRequest:  # which the worker says, too
        return None


def _json(**values: Any) -> Result:  # Any: plain JSON
    return Result(orjson.dumps(values))


def _check_base_model(live: Run, source: LoadSource) -> None:
    if ModelName.parse(source.base_model).base != ModelName.parse(live.base_model).base:
        raise BadRequest(
            f"the checkpoint is of base model {source.base_model!r}, and run {live.run_id!r} of {live.base_model!r}"
        )
