"""The worker service: holds the models and the runs, and serves the calls of ``protocol.Worker``.

One thread computes, in turns (see ``compute_turns``), one reads the channel, and one sends heartbeats. Saves and loads
do their disk work in further threads. Each kind of call is one method: a generator that returns the reply.
"""

from __future__ import annotations

import logging
import threading
import time
import traceback
from collections.abc import Callable, Generator
from concurrent.futures import Future
from contextvars import copy_context
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import orjson
import torch

from chockstone.backends.calls import (
    AddLossCall,
    CancelCall,
    CloseRunCall,
    DoneEvent,
    DropLossCall,
    EmptyReply,
    FailedEvent,
    ForgetCall,
    ForwardBackwardCall,
    LayoutCall,
    LoadCall,
    OpenRunCall,
    OptimStepCall,
    ReadyEvent,
    ReleasedEvent,
    SnapshotCall,
    StartFailedEvent,
    StopCall,
    WorkerCall,
    WorkerEvent,
    WorkerReply,
    WrittenCall,
    decode_call,
    encode_event,
    encode_reply,
    name_of,
)
from chockstone.backends.channel import BlockingChannel, ChannelClosed, Message
from chockstone.backends.export.encryption import parse_recipients
from chockstone.backends.losses.custom_loss import CustomLoss
from chockstone.backends.losses.weighted_tokens import weighted_tokens
from chockstone.backends.planning.layout import layout_of
from chockstone.backends.planning.refusals import check_base
from chockstone.backends.protocol import (
    LayoutReply,
    PassReply,
    SampleCall,
    SampleReply,
    SamplerStatus,
    SaveCall,
    SaveReply,
    StepReply,
)
from chockstone.backends.supervision.heartbeat import HeartbeatSender
from chockstone.backends.supervision.process import WorkerConfig
from chockstone.backends.training.base_model import BaseModel, choose_device, load_base_model
from chockstone.backends.training.optimizers import OptimStep
from chockstone.backends.training.process_group import SINGLE_PROCESS, ProcessGroup
from chockstone.backends.training.run import TrainedRun
from chockstone.backends.worker.checkpoints import State, WorkerCheckpoints
from chockstone.backends.worker.compute_turns import ComputeTurns, Schedule, Steps, TaskSource, in_context
from chockstone.backends.worker.environment import describe_environment
from chockstone.backends.worker.fitting import apply_fitting, check_fits
from chockstone.backends.worker.loading import report_loading
from chockstone.backends.worker.memory import memory_of_worker
from chockstone.backends.worker.sampler_weights import Weights, WeightsCache, packable_bytes, read_weights, run_weights
from chockstone.backends.worker.sampling_source import SamplingSource
from chockstone.backends.worker.timed_work import Work, timed
from chockstone.checkpoints import Admission, SavedCheckpoint
from chockstone.sampling.constrained.guide import Grammar
from chockstone.sampling.model import SampledModel
from chockstone.telemetry import tracing
from chockstone.wire.codecs.pass_request import decode_routed_pass
from chockstone.wire.codecs.pass_result import encode_pass_result
from chockstone.wire.codecs.routing import digest_tokens, encode_routing
from chockstone.wire.codecs.sample_request import decode_sample, limit_context
from chockstone.wire.codecs.sample_result import encode_sample_result
from chockstone.wire.failures import BadRequest, Failure, RequestError, ServerFailure
from chockstone.wire.model_names import ModelName

log = logging.getLogger(__name__)
_WEIGHTS_CACHE_BYTES: Final = 2 << 30


class WorkerService:
    def __init__(
        self,
        config: WorkerConfig,
        channel: BlockingChannel | None,
        *,
        on_orphaned: Callable[[], None],
        process_group: ProcessGroup = SINGLE_PROCESS,
        load: Callable[..., BaseModel] = load_base_model,
        schedule: Callable[[TaskSource, Callable[[Message], None]], Schedule] | None = None,
    ) -> None:
        """``on_orphaned`` is called, from the reading thread, when the server closes the channel or dies.

        A follower of a process group has no ``channel``. Its ``schedule`` gets the messages of its leader instead.
        """
        self._config = config
        self._channel = channel
        self._on_orphaned = on_orphaned
        self._process_group = process_group
        self._load_base = load
        self._sampling = SamplingSource(
            config.max_sequences, config.prefix_cache_bytes, process_group=process_group, on_pieces=self._send
        )
        self._turns: Schedule
        if schedule is None:
            self._turns = ComputeTurns(self._sampling, on_turn=process_group.announce_turn)
        else:
            self._turns = schedule(self._sampling, self._take)
        self._checkpoints = WorkerCheckpoints(config.store, post=self._turns.post, process_group=process_group)
        self._bases: dict[str, BaseModel] = {}
        self._sampled: dict[str, SampledModel] = {}
        self._runs: dict[str, TrainedRun] = {}
        self._owners: dict[str, str] = {}  # by run
        self._losses: dict[str, CustomLoss] = {}
        self._weights_cache = WeightsCache(_WEIGHTS_CACHE_BYTES)
        self._snapshots: dict[
            str, dict[str, Future[SavedCheckpoint]]
        ] = {}  # by run and archive, until they are on disk
        self._loading: dict[str, Future[State]] = {}
        self._fetching: set[str] = set()  # keys of samples whose weights are being read, or constraints compiled
        self._is_over = False

    def run(self) -> None:
        """Load the models, send the ready event, and serve calls until a stop."""
        if self._channel is not None:
            threading.Thread(target=self._read, args=[self._channel], name="channel", daemon=True).start()
        try:
            environment = self._load_models()
        except Exception as error:  # noqa: BLE001  # the next worker would meet it, too
            log.debug("models not loaded\n%s", traceback.format_exc())
            if not isinstance(error, ServerFailure):
                self._process_group.abort(error)
            reason = str(error) if isinstance(error, ServerFailure) else f"{type(error).__name__}: {error}"
            self._send(StartFailedEvent(reason))
            return
        self._send(ReadyEvent(environment))
        memory = partial(memory_of_worker, self._bases, self._runs)
        heartbeat = HeartbeatSender(self._send, self._turns.progress, memory, self._sampler_status)
        heartbeat.start()
        try:
            self._turns.run(lambda: self._is_over)
            self._process_group.announce_end()
            self._checkpoints.close()
            self._sampling.close()
        finally:
            heartbeat.stop()

    def _sampler_status(self) -> SamplerStatus:
        """For any thread: it takes lengths and numbers, and walks through nothing."""
        cache = self._weights_cache
        return SamplerStatus(
            **asdict(self._sampling.activity()),
            weights_cache_bytes=cache.size_bytes,
            weights_cache_limit_bytes=cache.limit_bytes,
        )

    def post(self, action: Callable[[], None]) -> None:
        """Call ``action`` on the compute thread, soon. May be called from any thread; its exceptions end ``run``."""
        self._turns.post(action)

    def _load_models(self) -> dict[str, Any]:
        """Returns the environment that results depend on."""
        device = choose_device(self._config.device)
        for name, directory in self._config.models.items():
            if self._config.memory_check:
                types = (self._config.dtype, self._config.base_precision)
                check_base(name, Path(directory), types, torch.device(device), self._process_group)
            with report_loading(name) as loaded:
                base = self._load_base(
                    name,
                    directory,
                    device=device,
                    dtype=self._config.dtype,
                    base_precision=self._config.base_precision,
                    activation_checkpointing=self._config.activation_checkpointing,
                )
                loaded(base)
            self._bases[name] = base
            self._sampled[name] = SampledModel(
                base.model,
                base.tokenizer,
                max_context=base.max_context,
                computing=base.computing if base.process_group.size > 1 else None,
                records_routing=self._config.router_replay == "on" and len(base.routers) > 0,
                packable_bytes=packable_bytes(base.device),
            )
        return describe_environment(self._config, device, processes=self._process_group.size)

    def _read(self, channel: BlockingChannel) -> None:
        try:
            while True:
                message = channel.receive()
                self._turns.post(lambda message=message: self._take(message))  # type: ignore[misc]  # bound now
        except ChannelClosed:
            self._on_orphaned()

    def _stop(self) -> None:
        self._is_over = True

    def _take(self, message: Message) -> None:
        numbered = decode_call(message)
        call = numbered.call
        if isinstance(call, StopCall):
            self._stop()
            return
        self._process_group.announce_call(message)
        with numbered.origin.resumed():
            self._start(self._answer(numbered.number, call), owner=self._owner_of(call))

    def _start(self, steps: Steps, *, owner: str = "") -> None:
        """The steps run in the present context: their log lines and spans belong to the request of the call."""
        self._turns.start(in_context(copy_context(), steps), owner=owner)

    def _owner_of(self, call: WorkerCall) -> str:
        """The user whose compute turns the call takes; empty if it is no user's."""
        match call:
            case OpenRunCall() | SampleCall() if call.owner:
                return call.owner
            case (
                OpenRunCall()
                | CloseRunCall()
                | ForwardBackwardCall()
                | OptimStepCall()
                | SaveCall()
                | SnapshotCall()
                | LoadCall()
            ):
                return self._owners.get(call.run_id, "")
        return ""

    def _answer(self, number: int, call: WorkerCall) -> Steps:
        try:
            with tracing.span(f"worker.{name_of(call)}"):
                reply = yield from self._perform(number, call)
            self._send(DoneEvent(number, encode_reply(reply)))
        except RequestError as error:
            self._send(FailedEvent(number, error))
        except Exception as error:  # noqa: BLE001  # sent to the client, and logged
            log.error("call failed call=%s error=%s\n%s", name_of(call), error, traceback.format_exc())
            self._process_group.abort(error)
            self._send(FailedEvent(number, ServerFailure(f"{type(error).__name__}: {error}")))

    def _perform(self, number: int, call: WorkerCall) -> Work[WorkerReply]:  # one per kind of call
        match call:
            case ForwardBackwardCall():
                return timed(self._forward_backward(call))
            case OptimStepCall():
                return timed(self._optim_step(call))
            case SampleCall():
                return self._sample(number, call)
            case SaveCall():
                return self._save(call, release=lambda: self._send(ReleasedEvent(number)))
            case SnapshotCall():
                return self._snapshot(call)
            case LoadCall():
                return self._load(call)
            case OpenRunCall():
                return self._open_run(call)
            case CloseRunCall():
                return self._close_run(call)
            case AddLossCall():
                return self._add_loss(call)
            case DropLossCall():
                return self._drop_loss(call)
            case LayoutCall():
                return self._layout(call)
            case CancelCall():
                return self._cancel(call)
            case ForgetCall():
                return self._forget(call)
            case WrittenCall():
                return self._written(call)

    def _send(self, event: WorkerEvent) -> None:
        if self._channel is None:
            return  # the leader answers
        try:
            self._channel.send(encode_event(event))
        except ChannelClosed:
            log.debug("event not sent: the server has closed the channel")  # the reading thread ends the process

    def _open_run(self, call: OpenRunCall) -> Work[EmptyReply]:
        yield None
        name = ModelName.parse(call.base_model)
        base = self._bases[name.base].limited(name.max_context)
        if call.must_fit and self._config.memory_check:
            others = [run for run_id, run in self._runs.items() if run_id != call.run_id]
            check_fits(base, call.spec, others, give_back=self._sampling.drop_prefixes)
        self._owners[call.run_id] = call.owner
        self._runs[call.run_id] = TrainedRun(base, call.spec)
        return EmptyReply()

    def _close_run(self, call: CloseRunCall) -> Work[EmptyReply]:
        yield None
        self._runs.pop(call.run_id, None)
        self._owners.pop(call.run_id, None)
        self._snapshots.pop(call.run_id, None)
        return EmptyReply()

    def _forward_backward(self, call: ForwardBackwardCall) -> Work[PassReply]:
        request = decode_routed_pass(call.body, routing_bytes=call.routing_bytes)
        fitted = yield from apply_fitting(
            self._run(call.run_id),
            request,
            self._losses,
            tokens_per_micro_batch=call.tokens_per_micro_batch or self._config.tokens_per_micro_batch,
            is_replay=call.is_replay,
            loss_limits=call.loss_limits,
            checks_memory=self._config.memory_check,
        )
        result = fitted.result
        tokens = sum(len(datum.tokens) for datum in request.data)
        if not call.elementwise_loss:
            result = replace(result, elementwise_loss=())
        loss = None if request.forward_only else result.metrics["loss:sum"]
        return PassReply(
            result=encode_pass_result(result),
            tokens=tokens,
            loss=loss,
            weight=None if loss is None else weighted_tokens(request.data, request.loss),
            metrics=dict(result.metrics),
            tokens_per_micro_batch=fitted.tokens_per_micro_batch,
        )

    def _optim_step(self, call: OptimStepCall) -> Work[StepReply]:
        yield None
        return StepReply(metrics=self._run(call.run_id).optim_step(OptimStep.parse(call.params)))

    def _save(self, call: SaveCall, *, release: Callable[[], None]) -> Work[SaveReply]:
        run = self._run(call.run_id)
        keys = parse_recipients(call.recipients) if call.recipients else []
        if keys and call.kind != "external_weights":
            raise BadRequest("only external weights can be encrypted; save without recipients")
        if call.kind == "recovery":
            yield from self._until_snapshots_are_written(call.run_id)
        yield self._checkpoints.room()
        started = time.perf_counter()
        with tracing.span("save.snapshot", kind=call.kind):
            done = self._checkpoints.save(
                run,
                call.archive,
                kind=call.kind,
                metadata=call.metadata,
                ttl_seconds=call.ttl_seconds,
                recipients=keys,
                admission=Admission(allowance_bytes=call.allowance_bytes, reserve_bytes=call.reserve_bytes),
            )
        seconds = time.perf_counter() - started
        release()
        with tracing.span("save.write", kind=call.kind):
            yield done
        self._weights_cache.forget(call.archive)  # it holds the weights of the archive that was replaced
        saved = done.result()
        return SaveReply(size_bytes=saved.size_bytes, seal=saved.seal, seconds=seconds)

    def _snapshot(self, call: SnapshotCall) -> Work[EmptyReply]:
        """The weights can be sampled from at once; their archive is written in the background, if there is room."""
        run, archive = self._run(call.run_id), call.archive
        looking = self._checkpoints.is_whole(archive)
        yield looking
        is_whole = self._process_group.leaders_answer(looking.result())
        weights = run_weights(run, self._sampled[run.base.name])
        self._weights_cache.put(archive, weights, is_durable=is_whole)
        if is_whole:
            return EmptyReply()
        yield self._checkpoints.room()
        try:
            done = self._checkpoints.save(
                run,
                archive,
                kind="sampler_weights",
                metadata={},
                ttl_seconds=None,
                admission=Admission(reserve_bytes=call.reserve_bytes),
            )
        except BaseException:
            self._weights_cache.forget(archive)
            raise
        self._snapshots.setdefault(call.run_id, {})[archive] = done
        self._start(self._settle(call.run_id, archive, done))
        return EmptyReply()

    def _settle(self, run_id: str, archive: str, done: Future[SavedCheckpoint]) -> Steps:
        yield done
        if (error := done.exception()) is not None:
            log.error("sampler weights stay in memory only archive=%s error=%s", archive, error)
            return
        self._snapshots.get(run_id, {}).pop(archive, None)
        self._weights_cache.saved(archive)

    def _until_snapshots_are_written(self, run_id: str) -> Generator[Future[Any], None, None]:
        """Raises the error of a snapshot that could not be written and was not forgotten since."""
        for archive, done in list(self._snapshots.get(run_id, {}).items()):
            yield done
            error = done.exception()
            if isinstance(error, RequestError) and archive in self._snapshots.get(run_id, {}):
                reason = f"weights to sample from are in memory only, and no recovery archive may be newer: {error}"
                raise type(error)(reason, code=error.code, needed_bytes=error.needed_bytes)

    def _load(self, call: LoadCall) -> Work[EmptyReply]:
        run = self._run(call.run_id)
        state = self._checkpoints.load(call.archive, run.base.restore_template, seal=call.seal)
        yield state
        self._process_group.raise_together(state.exception())
        run.load(state.result(), with_optimizer=call.with_optimizer)
        return EmptyReply()

    def _add_loss(self, call: AddLossCall) -> Work[EmptyReply]:
        yield None
        self._losses[call.loss_id] = CustomLoss.parse(call.definition["graph"], call.definition["inputs"])
        return EmptyReply()

    def _drop_loss(self, call: DropLossCall) -> Work[EmptyReply]:
        yield None
        self._losses.pop(call.loss_id, None)
        return EmptyReply()

    def _layout(self, call: LayoutCall) -> Work[LayoutReply]:
        yield None
        return layout_of(self._bases[ModelName.parse(call.base_model).base], call.spec)

    def _sample(self, number: int, call: SampleCall) -> Work[SampleReply]:
        name = ModelName.parse(call.base_model)
        request = limit_context(decode_sample(orjson.loads(call.body)), name.max_context)
        weights = Weights(self._sampled[name.base], None, 0)
        grammar: Grammar | None = None
        if call.archive is not None or request.constraint is not None:
            self._fetching.add(call.key)
            try:
                if call.archive is not None:
                    weights = yield from self._fetch(name.base, call.archive, call.seal)
                if request.constraint is not None:
                    compiling = self._sampling.compile(weights.model, request.constraint)
                    yield compiling
                    grammar = compiling.result()
                if call.key not in self._fetching:
                    raise BadRequest("the sample was cancelled")
            finally:
                self._fetching.discard(call.key)
        stream = number if call.is_streamed else None
        done = self._sampling.add(
            call.key, weights, request, seed=call.seed, owner=call.owner, stream=stream, grammar=grammar
        )
        yield done
        outcome = done.result()
        if isinstance(outcome, Failure):
            raise BadRequest(outcome.error) if outcome.category == "user" else ServerFailure(outcome.error)
        tokens = sum(len(sequence.tokens) for sequence in outcome.sequences)
        records = {
            digest_tokens(np.concatenate([request.prompt, sequence.tokens[:-1]])): encode_routing(sequence.routing)
            for sequence in outcome.sequences
            if sequence.routing is not None
        }
        return SampleReply(
            content=b"".join([encode_sample_result(outcome, request), *records.values()]),
            tokens=tokens,
            prompt_tokens=len(request.prompt),
            routing={digest: len(record) for digest, record in records.items()},
        )

    def _cancel(self, call: CancelCall) -> Work[EmptyReply]:
        yield None
        self._fetching.discard(call.key)
        self._sampling.cancel(call.key)
        return EmptyReply()

    def _forget(self, call: ForgetCall) -> Work[EmptyReply]:
        self._weights_cache.forget(call.archive)
        for snapshots in self._snapshots.values():
            snapshots.pop(call.archive, None)
        removing = self._checkpoints.remove(call.archive)
        yield removing
        removing.result()
        return EmptyReply()

    def _written(self, call: WrittenCall) -> Work[EmptyReply]:
        yield self._checkpoints.written(call.archive)
        return EmptyReply()

    def _run(self, run_id: str) -> TrainedRun:
        if (run := self._runs.get(run_id)) is None:
            raise ServerFailure(f"run {run_id!r} is not loaded; resume it from its last checkpoint")
        return run

    def _fetch(self, base_model: str, archive: str, seal: str | None) -> Generator[Future[Any] | None, None, Weights]:
        """The weights of an archive, from the cache or from the store. Concurrent requests read them once."""
        if (weights := self._weights_cache.get(archive)) is not None:
            return weights
        loading = self._loading.get(archive) or self._checkpoints.load(
            archive, self._bases[base_model].restore_template, seal=seal
        )
        self._loading[archive] = loading
        yield loading
        self._loading.pop(archive, None)
        if (weights := self._weights_cache.get(archive)) is None:
            self._process_group.raise_together(loading.exception())
            weights = read_weights(loading.result(), self._bases[base_model], self._sampled[base_model])
            self._weights_cache.put(archive, weights, is_durable=True)
        return weights
