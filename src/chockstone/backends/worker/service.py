"""The workshop: the models, the runs on them, and the calls that train and sample.

One thread computes, in turns (see ``tasks``); one reads the channel; one says every second that all
is well; saves and loads do their disk work in threads of their own. Each call of ``engine.backend``
is one method here, a generator whose returned message is the reply.
"""

from __future__ import annotations

import logging
import threading
import time
import traceback
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, Final

import orjson

from chockstone.backends.channel import BlockingChannel, ChannelClosed, Message
from chockstone.backends.export.recipients import parse_recipients
from chockstone.backends.losses.custom_loss import CustomLoss
from chockstone.backends.losses.loss_meter import Limits
from chockstone.backends.supervision.heartbeat import Heart
from chockstone.backends.supervision.process import WorkerConfig
from chockstone.backends.training.base_model import BaseModel, choose_device, load_base_model
from chockstone.backends.training.optimizers import OptimStep
from chockstone.backends.training.process_group import ALONE, ProcessGroup
from chockstone.backends.training.run import RunSpec, TrainedRun
from chockstone.backends.worker.checkpoints import State, WorkerCheckpoints
from chockstone.backends.worker.compute_turns import ComputeTurns, Schedule, Steps, TaskSource
from chockstone.backends.worker.environment import describe_environment
from chockstone.backends.worker.sampler_weights import Weights, read_weights, run_weights
from chockstone.backends.worker.sampling_source import SamplingSource
from chockstone.backends.worker.weights_cache import WeightsCache
from chockstone.checkpoints import Admission, SavedCheckpoint
from chockstone.sampling.model import SampledModel
from chockstone.wire.codecs.pass_request import decode_pass
from chockstone.wire.codecs.pass_result import encode_pass_result
from chockstone.wire.codecs.sample_request import decode_sample, limit_context
from chockstone.wire.codecs.sample_result import encode_sample_result
from chockstone.wire.failures import BadRequest, Failure, RequestError, ServerFailure
from chockstone.wire.model_names import ModelName

log = logging.getLogger(__name__)
_SHELF_BYTES: Final = 2 << 30
Call = Generator["Future[Any] | None", None, Message]


class WorkerService:
    def __init__(
        self,
        config: WorkerConfig,
        channel: BlockingChannel | None,
        *,
        on_orphaned: Callable[[], None],
        crew: ProcessGroup = ALONE,
        load: Callable[..., BaseModel] = load_base_model,
        schedule: Callable[[TaskSource, Callable[[Message], None]], Schedule] | None = None,
    ) -> None:
        """``on_orphaned`` is called, by the thread that reads, when the server is gone.

        One of a crew that does not lead has no ``channel``, and a ``schedule`` that is given its messages instead.
        """
        self._config = config
        self._channel = channel
        self._on_orphaned = on_orphaned
        self._crew = crew
        self._load_base = load
        self._sampling = SamplingSource(config.max_sequences, crew=crew)
        self._turns: Schedule
        if schedule is None:
            self._turns = ComputeTurns(self._sampling, on_turn=crew.tell_turn)
        else:
            self._turns = schedule(self._sampling, self._take)
        self._library = WorkerCheckpoints(config.store, post=self._turns.post, crew=crew)
        self._bases: dict[str, BaseModel] = {}
        self._sampled: dict[str, SampledModel] = {}
        self._runs: dict[str, TrainedRun] = {}
        self._owners: dict[str, str] = {}  # by run
        self._losses: dict[str, CustomLoss] = {}
        self._shelf = WeightsCache(_SHELF_BYTES)
        self._snapshots: dict[str, dict[str, Future[SavedCheckpoint]]] = {}  # by run, archives not known to be on disk
        self._loading: dict[str, Future[State]] = {}
        self._fetching: set[str] = set()  # samples whose weights are on their way
        self._is_over = False
        self._calls: dict[str, Callable[..., Call]] = {
            "open_run": self._open_run,
            "close_run": self._close_run,
            "pass": self._pass,
            "optim_step": self._optim_step,
            "save": self._save,
            "snapshot": self._snapshot,
            "load": self._load,
            "add_loss": self._add_loss,
            "drop_loss": self._drop_loss,
            "sample": self._sample,
            "cancel": self._cancel,
            "forget": self._forget,
            "written": self._written,
        }

    def run(self) -> None:
        """Load the models, say so, and work until told to stop."""
        if self._channel is not None:
            threading.Thread(target=self._read, args=[self._channel], name="channel", daemon=True).start()
        try:
            environment = self._load_models()
        except Exception as error:  # noqa: BLE001  # whatever it is, it will be the same the next time
            log.debug("models not loaded\n%s", traceback.format_exc())
            if not isinstance(error, ServerFailure):
                self._crew.lose(error)
            told = str(error) if isinstance(error, ServerFailure) else f"{type(error).__name__}: {error}"
            self._send(Message({"event": "hopeless", "error": told}))
            return
        self._send(Message({"event": "ready", "details": {"environment": environment}}))
        heart = Heart(lambda values: self._send(Message(values)), self._turns.pulse)
        heart.start()
        try:
            self._turns.run(lambda: self._is_over)
            self._crew.dismiss()
            self._library.close()
        finally:
            heart.stop()

    def post(self, action: Callable[[], None]) -> None:
        """Have ``action`` called on the compute thread, soon; what it raises ends ``run``. For any thread."""
        self._turns.post(action)

    def _load_models(self) -> dict[str, Any]:
        """Returns the environment that results depend on."""
        device = choose_device(self._config.device)
        for name, directory in self._config.models.items():
            base = self._load_base(name, directory, device=device, dtype=self._config.dtype)
            self._bases[name] = base
            self._sampled[name] = SampledModel(
                base.model,
                base.tokenizer,
                max_context=base.max_context,
                computing=base.computing if base.crew.size > 1 else None,
            )
        return describe_environment(self._config, device, processes=self._crew.size)

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
        if message.values["word"] == "stop":
            self._stop()
            return
        self._crew.tell(message)
        self._turns.start(self._answer(message), party=self._party(message.values["values"]))

    def _party(self, values: Mapping[str, Any]) -> str:  # Any: plain JSON
        """The user a call is for, as far as it is for one."""
        return str(values.get("owner") or self._owners.get(values.get("run_id", ""), ""))

    def _answer(self, message: Message) -> Steps:
        number, word, values = message.values["id"], message.values["word"], dict(message.values["values"])
        try:
            if word in ("pass", "sample"):
                values["body"] = message.body
            if word == "save":
                values["release"] = lambda: self._reply(number, "released")
            call = self._calls[word](**values)
            reply = yield from _timed(call) if word in ("pass", "optim_step") else call
            self._reply(number, "done", reply)
        except RequestError as error:
            self._fail(number, error)
        except Exception as error:  # noqa: BLE001  # told to the client, and logged
            log.error("call failed word=%s error=%s\n%s", word, error, traceback.format_exc())
            self._crew.lose(error)
            self._fail(number, error)

    def _reply(self, number: int, event: str, message: Message | None = None) -> None:
        message = message or Message()
        self._send(Message({"id": number, "event": event, "values": message.values}, message.body))

    def _fail(self, number: int, error: Exception) -> None:
        failure = Failure.of(error)
        values = {"id": number, "event": "failed", "category": failure.category}
        values["error"] = failure.error.encode(errors="replace").decode()  # a file's name need not be text
        values["code"] = error.code if isinstance(error, RequestError) else None
        self._send(Message(values))

    def _send(self, message: Message) -> None:
        if self._channel is None:
            return  # the leader answers
        try:
            self._channel.send(message)
        except ChannelClosed:
            log.debug("nobody listens")  # which whoever reads the channel finds out, too

    # The calls. Each takes its values by name.

    def _open_run(self, *, run_id: str, base_model: str, spec: dict[str, Any], owner: str = "") -> Call:
        yield None
        self._owners[run_id] = owner
        name = ModelName.parse(base_model)
        self._runs[run_id] = TrainedRun(self._bases[name.base].limited(name.max_context), RunSpec.from_json(spec))
        return Message()

    def _close_run(self, *, run_id: str) -> Call:
        yield None
        self._runs.pop(run_id, None)
        self._owners.pop(run_id, None)
        self._snapshots.pop(run_id, None)
        return Message()

    def _pass(
        self, *, run_id: str, body: bytes, elementwise_loss: bool = False, loss_limits: Limits = "enforced"
    ) -> Call:
        """``elementwise_loss``: whether the result has the loss per position, too."""
        request = decode_pass(body)
        result = yield from self._run(run_id).apply(
            request,
            self._losses,
            tokens_per_micro_batch=self._config.tokens_per_micro_batch,
            loss_limits=loss_limits,
        )
        tokens = sum(len(datum.tokens) for datum in request.data)
        if not elementwise_loss:
            result = replace(result, elementwise_loss=())
        return Message({"tokens": tokens}, encode_pass_result(result))

    def _optim_step(self, *, run_id: str, params: dict[str, Any]) -> Call:
        yield None
        return Message({"metrics": self._run(run_id).optim_step(OptimStep.parse(params))})

    def _save(
        self,
        *,
        run_id: str,
        archive: str,
        kind: str,
        metadata: dict[str, Any],
        ttl_seconds: float | None,
        release: Callable[[], None],
        recipients: Sequence[str] = (),
        allowance_bytes: int | None = None,
        reserve_bytes: int = 0,
    ) -> Call:
        """``recipients``: of an export, each of whose files is then encrypted to them; none are encrypted to nobody."""
        run = self._run(run_id)
        keys = parse_recipients(recipients) if recipients else []
        if keys and kind != "external_weights":
            raise BadRequest("only external weights can be encrypted; save without recipients")
        if kind == "recovery":
            yield from self._until_snapshots_are_written(run_id)
        yield self._library.room()
        started = time.perf_counter()
        done = self._library.save(
            run,
            archive,
            kind=kind,
            metadata=metadata,
            ttl_seconds=ttl_seconds,
            recipients=keys,
            admission=Admission(allowance_bytes=allowance_bytes, reserve_bytes=reserve_bytes),
        )
        seconds = time.perf_counter() - started
        release()
        yield done
        self._shelf.forget(archive)  # which held what the archive was before
        saved = done.result()
        return Message({"size_bytes": saved.size_bytes, "seal": saved.seal, "seconds": seconds})

    def _snapshot(self, *, run_id: str, archive: str, reserve_bytes: int = 0) -> Call:
        """Weights to sample from at once; the archive, which brings them back, is written behind if it fits."""
        run = self._run(run_id)
        looking = self._library.is_whole(archive)
        yield looking
        is_whole = self._crew.decide(looking.result())
        weights = run_weights(run, self._sampled[run.base.name])
        self._shelf.put(archive, weights, is_durable=is_whole)
        if is_whole:
            return Message()
        yield self._library.room()
        try:
            done = self._library.save(
                run,
                archive,
                kind="sampler_weights",
                metadata={},
                ttl_seconds=None,
                admission=Admission(reserve_bytes=reserve_bytes),
            )
        except BaseException:
            self._shelf.forget(archive)
            raise
        self._snapshots.setdefault(run_id, {})[archive] = done
        self._turns.start(self._settle(run_id, archive, done))
        return Message()

    def _settle(self, run_id: str, archive: str, done: Future[SavedCheckpoint]) -> Steps:
        yield done
        if (error := done.exception()) is not None:
            log.error("sampler weights stay in memory only archive=%s error=%s", archive, error)
            return
        self._snapshots.get(run_id, {}).pop(archive, None)
        self._shelf.settled(archive)

    def _until_snapshots_are_written(self, run_id: str) -> Generator[Future[Any], None, None]:
        """Raises what kept one from being written that is still wanted."""
        for archive, done in list(self._snapshots.get(run_id, {}).items()):
            yield done
            error = done.exception()
            if isinstance(error, RequestError) and archive in self._snapshots.get(run_id, {}):
                reason = f"weights to sample from are in memory only, and no recovery archive may be newer: {error}"
                raise type(error)(reason, code=error.code)

    def _load(self, *, run_id: str, archive: str, with_optimizer: bool, seal: str | None = None) -> Call:
        run = self._run(run_id)
        state = self._library.load(archive, run.base.mould, seal=seal)
        yield state
        self._crew.agree(state.exception())
        run.load(state.result(), with_optimizer=with_optimizer)
        return Message()

    def _add_loss(self, *, loss_id: str, definition: dict[str, Any]) -> Call:
        yield None
        self._losses[loss_id] = CustomLoss.parse(definition["graph"], definition["inputs"])
        return Message()

    def _drop_loss(self, *, loss_id: str) -> Call:
        yield None
        self._losses.pop(loss_id, None)
        return Message()

    def _sample(
        self,
        *,
        key: str,
        base_model: str,
        archive: str | None,
        seed: int,
        body: bytes,
        owner: str = "",
        seal: str | None = None,
    ) -> Call:
        name = ModelName.parse(base_model)
        request = limit_context(decode_sample(orjson.loads(body)), name.max_context)
        weights = Weights(self._sampled[name.base], None, 0)
        if archive is not None:
            self._fetching.add(key)
            try:
                weights = yield from self._fetch(name.base, archive, seal)
                if key not in self._fetching:
                    raise BadRequest("the sample was cancelled")
            finally:
                self._fetching.discard(key)
        done = self._sampling.add(key, weights, request, seed=seed, owner=owner)
        yield done
        outcome = done.result()
        if isinstance(outcome, Failure):
            raise BadRequest(outcome.error) if outcome.category == "user" else ServerFailure(outcome.error)
        tokens = sum(len(sequence.tokens) for sequence in outcome.sequences)
        counts = {"tokens": tokens, "prompt_tokens": len(request.prompt)}
        return Message(counts, encode_sample_result(outcome, request))

    def _cancel(self, *, key: str) -> Call:
        yield None
        self._fetching.discard(key)
        self._sampling.cancel(key)
        return Message()

    def _forget(self, *, archive: str) -> Call:
        self._shelf.forget(archive)
        for snapshots in self._snapshots.values():
            snapshots.pop(archive, None)
        removing = self._library.remove(archive)
        yield removing
        removing.result()
        return Message()

    def _written(self, *, archive: str) -> Call:
        yield self._library.written(archive)
        return Message()

    def _run(self, run_id: str) -> TrainedRun:
        if (run := self._runs.get(run_id)) is None:
            raise ServerFailure(f"run {run_id!r} is not loaded; resume it from its last checkpoint")
        return run

    def _fetch(self, base_model: str, archive: str, seal: str | None) -> Generator[Future[Any] | None, None, Weights]:
        """The weights of an archive, from the shelf or from the store; asked for together, they are read once."""
        if (weights := self._shelf.get(archive)) is not None:
            return weights
        loading = self._loading.get(archive) or self._library.load(archive, self._bases[base_model].mould, seal=seal)
        self._loading[archive] = loading
        yield loading
        self._loading.pop(archive, None)
        if (weights := self._shelf.get(archive)) is None:
            self._crew.agree(loading.exception())
            weights = read_weights(loading.result(), self._bases[base_model], self._sampled[base_model])
            self._shelf.put(archive, weights, is_durable=True)
        return weights


def _timed(call: Call) -> Call:
    """The call, with a reply that also says for how many seconds it has computed."""
    seconds = 0.0
    while True:
        started = time.perf_counter()
        try:
            awaited = next(call)
        except StopIteration as ended:
            reply: Message = ended.value
            seconds += time.perf_counter() - started
            return Message({**reply.values, "seconds": seconds}, reply.body)
        seconds += time.perf_counter() - started
        yield awaited
