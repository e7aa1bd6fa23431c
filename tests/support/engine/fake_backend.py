"""A backend with numbers for tensors: everything it is told happens at once, unless a test holds it back.

Its archives are real ones in a real store, small as they are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import orjson

from chockstone.backends.calls import (
    AddLossCall,
    CloseRunCall,
    DropLossCall,
    EmptyReply,
    ForgetCall,
    ForwardBackwardCall,
    LayoutCall,
    LoadCall,
    OpenRunCall,
    OptimStepCall,
    ReplyT,
    SnapshotCall,
    WorkerCall,
    WorkerCalls,
    WorkerReply,
    name_of,
    values_of,
)
from chockstone.backends.protocol import (
    LayoutReply,
    OnPieces,
    PassReply,
    RunSpec,
    SampleCall,
    SampledPiece,
    SampleReply,
    SaveCall,
    SaveReply,
    StepReply,
    Worker,
    WorkerLost,
    WorkerMemory,
    WorkerPhase,
    WorkerStatus,
)
from chockstone.checkpoints import Admission, Archive, Checkpointer, SavedCheckpoint, Store, load_state
from chockstone.checkpoints.errors import (
    AdmissionRefused,
    CheckpointError,
    CheckpointMissing,
    DamagedArchive,
    StoreDenied,
    StoreFull,
    StoreUnreachable,
)
from chockstone.wire.codecs.sample_result import encode_sample_result
from chockstone.wire.codecs.samples import SampledSequence, SampleRequest, SampleResult, SamplingParams, StopReason
from chockstone.wire.failures import BadRequest, Code, ServerFailure


@dataclass
class Numbers:
    """A run: a pass adds its body to the gradient, a step adds the gradient to the weight."""

    weight: int = 0
    gradient: int = 0
    steps: int = field(default=0, compare=False)


LAYERS = ("model.layers.0.self_attn.q_proj", "model.layers.0.mlp.up_proj")  # [3, 4] each
SCALE = 8.0  # of the adapter of every run


def shapes_of_run(spec: RunSpec) -> list[tuple[str, list[int]]]:
    """The weights that a run would train, as ``layout`` tells them."""
    if spec.is_full:
        return [(f"{layer}.weight", [3, 4]) for layer in LAYERS]
    chosen = [layer for layer in LAYERS if spec.train_attn or "attn" not in layer]
    return [
        (f"{layer}.{name}", shape)
        for layer in chosen
        for name, shape in (("lora_A", [spec.rank, 4]), ("lora_B", [3, spec.rank]))
    ]


class FakeBackend(WorkerCalls):
    def __init__(self, store: Store) -> None:
        self.store = store
        self._checkpointer = Checkpointer(store)
        self.calls: list[tuple[str, dict[str, Any], bytes]] = []
        self.runs: dict[str, Numbers] = {}
        self.losses: dict[str, Any] = {}
        self.custom: str | None = None  # the loss that every pass needs
        self.fitting: int | None = None  # tokens of the micro-batches that passes end with; None: as asked for
        self.is_ready = False
        self.trouble: str | None = None
        self.is_stopped = False
        self.is_slow = False  # it does not become ready by itself
        self.generation = 1
        self.environment: dict[str, Any] = {"device": "none", "models": {"tiny": "", "other": ""}}
        self.sequences: Sequence[SampledSequence] | None = None  # of every sample; None: a result that is no result
        self.poison: bytes | None = None  # a pass of this body kills the worker
        self.on_death: Callable[[str], None] = lambda _: None
        self.seconds = 0.0  # that a pass, a step or a copy is said to take
        self._reason = ""
        self.deaths = 0
        self._held: dict[str, asyncio.Future[None]] = {}
        self._failures: dict[str, Exception] = {}

    @property
    def status(self) -> WorkerStatus:
        phase: WorkerPhase = "ready" if self.is_ready else "starting" if self.trouble is None else "failing"
        memory = WorkerMemory(1 << 20) if self.is_ready else WorkerMemory()
        return WorkerStatus(phase=phase, since=0.0, deaths=self.deaths, last_death=self._reason or None, memory=memory)

    async def start(self) -> None:
        self.is_ready = not self.is_slow

    async def stop(self) -> None:
        self.is_stopped = True

    async def ready(self) -> None:
        while not self.is_ready:
            if self.is_stopped:
                raise WorkerLost("the worker was stopped")
            await asyncio.sleep(0.001)

    async def send(
        self,
        call: WorkerCall,
        reply: type[ReplyT],
        *,
        on_release: Callable[[], None] = lambda: None,
        on_pieces: OnPieces = lambda _: None,
        generation: int | None = None,
    ) -> ReplyT:
        if generation not in (None, self.generation):
            raise WorkerLost(f"the worker of generation {generation} is gone", code="unsent")
        began = self.generation
        body = call.body if isinstance(call, ForwardBackwardCall | SampleCall) else b""
        self.calls.append((name_of(call), values_of(call), body))
        await self._pass_gate(name_of(call))
        if isinstance(call, ForwardBackwardCall):
            await self._pass_gate(f"forward_backward {body.decode(errors='replace')}")
            if body == self.poison:
                self.die("signal 11")
                raise WorkerLost("signal 11")
        try:
            if isinstance(call, SampleCall) and (call.is_streamed or self.sequences is not None):
                result: WorkerReply = await self._generate(call, on_pieces)
            else:
                result = await self._do(call, on_release)
        finally:
            if self.generation != began:
                raise WorkerLost(self._reason)
        assert isinstance(result, reply)
        return result

    async def _do(self, call: WorkerCall, on_release: Callable[[], None]) -> WorkerReply:
        match call:
            case SaveCall():
                state = copy(self._run(call.run_id))
                on_release()
                await self._pass_gate("disk")
                saved = await asyncio.to_thread(self._write, call, state)
                return SaveReply(size_bytes=saved.size_bytes, seal=saved.seal, seconds=self.seconds)
            case SnapshotCall():
                state = copy(self._run(call.run_id))
                if call.archive not in {entry.name for entry in self.store.entries()}:
                    save = SaveCall(
                        run_id=call.run_id,
                        archive=call.archive,
                        kind="sampler_weights",
                        reserve_bytes=call.reserve_bytes,
                    )
                    await asyncio.to_thread(self._write, save, state)
            case LoadCall():
                state = await asyncio.to_thread(self._read, call.archive, call.seal)
                self._load(self._run(call.run_id), state, with_optimizer=call.with_optimizer)
            case ForgetCall():
                await asyncio.to_thread(self.store.delete, call.archive)
            case ForwardBackwardCall():
                return self._pass(call)
            case OptimStepCall():
                return self._step(call)
            case LayoutCall():
                return LayoutReply(run={"spec": call.spec.to_json(), "layout": shapes_of_run(call.spec)}, scale=SCALE)
            case SampleCall():
                return SampleReply(content=b"sampled " + call.body, tokens=1, prompt_tokens=len(call.body))
            case OpenRunCall():
                self.runs[call.run_id] = Numbers()
            case CloseRunCall():
                self.runs.pop(call.run_id, None)
            case AddLossCall():
                self.losses[call.loss_id] = call.definition
            case DropLossCall():
                self.losses.pop(call.loss_id, None)
        return EmptyReply()

    async def _generate(self, call: SampleCall, on_pieces: OnPieces) -> SampleReply:
        """One token of each sequence at a time; all but the last come in pieces, if the call is streamed.

        ``hold("token 2")`` holds the third token back, and those after it.
        """
        began, sequences = self.generation, self._sequences_of(call)
        steps = max(len(each.tokens) for each in sequences)
        for position in range(steps):
            await self._pass_gate(f"token {position}")
            if self.generation != began:
                raise WorkerLost(self._reason)
            if call.is_streamed and position < steps - 1:
                on_pieces(_pieces_at(position, sequences))
        request = SampleRequest(np.array([1], np.int32), len(sequences), SamplingParams())
        return SampleReply(
            content=encode_sample_result(SampleResult(sequences), request),
            tokens=sum(len(each.tokens) for each in sequences),
            prompt_tokens=len(call.body),
        )

    def _sequences_of(self, call: SampleCall) -> tuple[SampledSequence, ...]:
        if self.sequences is not None:
            return tuple(self.sequences)
        try:
            count = orjson.loads(call.body).get("num_samples", 1)
        except (orjson.JSONDecodeError, AttributeError):
            count = 1
        return (sequence_of([1, 2, 3]),) * count

    @property
    def archives(self) -> dict[str, int]:
        """The weight in each archive of the store, without those that are deleted while they are read."""
        weights = {}
        for entry in self.store.entries():
            with suppress(BadRequest):
                weights[entry.name] = self._read(entry.name).weight
        return weights

    def words(self) -> list[str]:
        return [word for word, _, _ in self.calls]

    def values_of(self, word: str) -> list[dict[str, Any]]:
        return [values for called, values, _ in self.calls if called == word]

    def hold(self, word: str) -> None:
        """Calls of this word wait from now on; ``disk`` is where a save waits after it has released its run.

        Of passes, those of one body can be held: ``forward_backward 5``.
        """
        self._held[word] = asyncio.get_running_loop().create_future()

    def let_go(self, word: str) -> None:
        self._held.pop(word).set_result(None)

    def let_everything_go(self) -> None:
        for word in list(self._held):
            self.let_go(word)

    def fail_next(self, word: str, error: Exception) -> None:
        self._failures[word] = error

    def die(self, reason: str) -> None:
        """What is under way ends as it does when the process is killed; the next one, ready at once, knows nothing."""
        self.generation += 1
        self.deaths += 1
        self._reason = reason
        for held in self._held.values():
            held.set_exception(WorkerLost(reason))
            held.exception()  # it may be that nobody waited
        self._held.clear()
        self.runs.clear()
        self.losses.clear()
        self.on_death(reason)

    async def _pass_gate(self, word: str) -> None:
        if word in self._held:
            await asyncio.shield(self._held[word])
        if word in self._failures:
            raise self._failures.pop(word)

    def _run(self, run_id: str) -> Numbers:
        if (run := self.runs.get(run_id)) is None:
            raise ServerFailure(f"run {run_id!r} is not loaded")
        return run

    def _pass(self, call: ForwardBackwardCall) -> PassReply:
        run, body = self._run(call.run_id), call.body
        if self.custom not in (None, *self.losses):
            raise BadRequest(f"there is no custom loss {self.custom!r}")
        if not body.isdigit():
            raise BadRequest(f"{body!r} is not a number")
        run.gradient += int(body)
        return PassReply(
            result=b"loss " + body,
            tokens=int(body),
            seconds=self.seconds,
            loss=int(body) / 4,
            tokens_per_micro_batch=None if call.is_replay else self.fitting,
        )

    def _step(self, call: OptimStepCall) -> StepReply:
        run = self._run(call.run_id)
        run.weight += run.gradient
        run.gradient = 0
        run.steps += 1
        return StepReply(metrics={"weight": run.weight, "steps": float(run.steps)}, seconds=self.seconds)

    @staticmethod
    def _load(run: Numbers, saved: Numbers, *, with_optimizer: bool) -> None:
        run.weight = saved.weight
        run.gradient = saved.gradient if with_optimizer else 0
        run.steps = saved.steps if with_optimizer else 0

    def _write(self, call: SaveCall, state: Numbers) -> SavedCheckpoint:
        try:
            handle = self._checkpointer.save(
                {"run": {"weight": np.array([state.weight]), "gradient": state.gradient, "steps": state.steps}},
                name=call.archive,
                kind=call.kind,
                step=state.steps,
                metadata=call.metadata,
                ttl_seconds=call.ttl_seconds,
                overwrite=True,
                admission=Admission(allowance_bytes=call.allowance_bytes, reserve_bytes=call.reserve_bytes),
            )
            return handle.result()
        except AdmissionRefused as error:
            raise BadRequest(str(error), code="no_room", needed_bytes=error.needed_bytes) from error
        except StoreFull as error:
            raise BadRequest(str(error), code="no_room") from error

    def _read(self, archive: str, seal: str | None = None) -> Numbers:
        try:
            with Archive(self.store.open(archive), seal=seal) as opened:
                run = load_state(opened)["run"]
                return Numbers(int(run["weight"][0]), run.get("gradient", 0), run.get("steps", 0))
        except CheckpointMissing as error:
            raise BadRequest(f"the checkpoint is not in the store any more: {error}", code="missing") from error
        except DamagedArchive as error:
            raise _unreadable(error, "damaged") from error
        except StoreDenied as error:
            raise _unreadable(error, "denied") from error
        except StoreUnreachable as error:
            raise _unreadable(error, "unreachable") from error


def sequence_of(tokens: Sequence[int], *, stop_reason: StopReason = "stop") -> SampledSequence:
    """A sequence with these tokens; the logprob of each is minus its position, in quarters."""
    logprobs = -np.arange(len(tokens), dtype=np.float32) / 4
    return SampledSequence(np.array(tokens, np.int32), logprobs, stop_reason)


def _pieces_at(position: int, sequences: Sequence[SampledSequence]) -> list[SampledPiece]:
    return [
        SampledPiece(
            number,
            (int(each.tokens[position]),),
            (float(each.logprobs[position]),),
            each.stop_reason if position == len(each.tokens) - 1 else None,
            position,
        )
        for number, each in enumerate(sequences)
        if position < len(each.tokens)
    ]


def _unreadable(error: CheckpointError, code: Code) -> ServerFailure:
    return ServerFailure(f"the checkpoint cannot be loaded: {error}", code=code, reason=str(error))


def _is_a_worker(fake: FakeBackend) -> Worker:
    return fake
