"""Worker calls, replies and events: their dataclasses, and the one codec of them for the channel.

The supervisor encodes a call, the worker service decodes it to the same dataclass, and replies travel the same way
back. The head of a message is plain JSON; a field of type bytes is the body of its message. Both ends are of the same
version, so there is no compatibility to keep. Imports no torch.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Final, Self, TypeVar

from chockstone.backends.channel import Message
from chockstone.backends.protocol import (
    GpuMemory,
    HeldMemory,
    LayoutReply,
    LossLimits,
    OnPieces,
    PassReply,
    SampleCall,
    SampledPiece,
    SampleReply,
    SamplerStatus,
    SaveCall,
    SaveReply,
    StepReply,
    WorkerMemory,
)
from chockstone.backends.run_spec import RunSpec
from chockstone.telemetry.origin import NO_ORIGIN, RequestOrigin
from chockstone.wire.codecs.sampled_pieces import decode_pieces, encode_pieces
from chockstone.wire.failures import BadRequest, RequestError, ServerFailure

_BYTES: Final = "bytes"  # annotations are strings here


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenRunCall:
    run_id: str
    base_model: str
    spec: RunSpec
    owner: str = ""
    must_fit: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CloseRunCall:
    run_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardBackwardCall:
    run_id: str
    body: bytes
    elementwise_loss: bool = False
    loss_limits: LossLimits = "enforced"
    routing_bytes: int = 0
    tokens_per_micro_batch: int | None = None
    is_replay: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimStepCall:
    run_id: str
    params: Mapping[str, Any]  # Any: plain JSON


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotCall:
    run_id: str
    archive: str
    reserve_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadCall:
    run_id: str
    archive: str
    with_optimizer: bool
    seal: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AddLossCall:
    loss_id: str
    definition: Mapping[str, Any]  # Any: plain JSON


@dataclass(frozen=True, slots=True, kw_only=True)
class DropLossCall:
    loss_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutCall:
    base_model: str
    spec: RunSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelCall:
    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetCall:
    archive: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenCall:
    archive: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StopCall:
    """Finish the calls in progress and end. It has no reply."""


@dataclass(frozen=True, slots=True)
class EmptyReply:
    """The call succeeded, and there is nothing more to say."""


RunCall = (
    OpenRunCall | CloseRunCall | ForwardBackwardCall | OptimStepCall | SaveCall | SnapshotCall | LoadCall
)  # about one run
OtherCall = AddLossCall | DropLossCall | LayoutCall | SampleCall | CancelCall | ForgetCall | WrittenCall
WorkerCall = RunCall | OtherCall
WorkerReply = EmptyReply | PassReply | StepReply | SaveReply | LayoutReply | SampleReply
ReplyT = TypeVar("ReplyT", EmptyReply, PassReply, StepReply, SaveReply, LayoutReply, SampleReply)
T = TypeVar("T")

_CALLS: Final[Mapping[str, type[WorkerCall | StopCall]]] = {
    "open_run": OpenRunCall,
    "close_run": CloseRunCall,
    "forward_backward": ForwardBackwardCall,
    "optim_step": OptimStepCall,
    "save": SaveCall,
    "snapshot": SnapshotCall,
    "load": LoadCall,
    "add_loss": AddLossCall,
    "drop_loss": DropLossCall,
    "layout": LayoutCall,
    "sample": SampleCall,
    "cancel": CancelCall,
    "forget": ForgetCall,
    "written": WrittenCall,
    "stop": StopCall,
}
_NAMES: Final = {kind: name for name, kind in _CALLS.items()}


def name_of(call: WorkerCall | StopCall) -> str:
    """The name of the ``Worker`` method that makes the call."""
    return _NAMES[type(call)]


@dataclass(frozen=True, slots=True)
class NumberedCall:
    number: int  # which its events refer to
    call: WorkerCall | StopCall
    origin: RequestOrigin = NO_ORIGIN


def encode_call(number: int, call: WorkerCall | StopCall, origin: RequestOrigin = NO_ORIGIN) -> Message:
    """``origin``: the HTTP request that the call is made for."""
    values, body = _encode(call)
    head = {"id": number, "call": name_of(call), "values": values}
    return Message({**head, "origin": known} if (known := origin.to_json()) else head, body)


def decode_call(message: Message) -> NumberedCall:
    values = dict(message.values["values"])
    kind = _CALLS[message.values["call"]]
    if kind in (OpenRunCall, LayoutCall):
        values["spec"] = RunSpec.from_json(values["spec"])
    if kind is SaveCall:
        values["recipients"] = tuple(values.get("recipients", ()))
    origin = RequestOrigin.from_json(message.values.get("origin"))
    return NumberedCall(message.values["id"], _decode(kind, values, message.body), origin)


@dataclass(frozen=True, slots=True)
class ReadyEvent:
    """The worker has loaded its models."""

    environment: Mapping[str, Any]  # Any: plain JSON


@dataclass(frozen=True, slots=True)
class StartFailedEvent:
    """The worker cannot load its models, and the next worker could not either."""

    error: str


@dataclass(frozen=True, slots=True)
class BeatEvent:
    """The worker is alive, has finished so many compute turns, and is or is not busy with another one."""

    turns: int
    busy: bool
    memory: WorkerMemory = field(default_factory=WorkerMemory)
    sampler: SamplerStatus | None = None


@dataclass(frozen=True, slots=True)
class ReleasedEvent:
    """The run of a save may continue: its state is copied."""

    number: int


@dataclass(frozen=True, slots=True)
class DoneEvent:
    number: int
    reply: Message  # for ``decode_reply``: the caller knows its type


@dataclass(frozen=True, slots=True)
class FailedEvent:
    number: int
    error: RequestError


@dataclass(frozen=True, slots=True)
class PiecesEvent:
    """New tokens of streamed samples: each piece with the number of its call."""

    numbers: tuple[int, ...]
    pieces: tuple[SampledPiece, ...]


WorkerEvent = ReadyEvent | StartFailedEvent | BeatEvent | ReleasedEvent | PiecesEvent | DoneEvent | FailedEvent


def encode_event(event: WorkerEvent) -> Message:
    match event:
        case ReadyEvent():
            return Message({"event": "ready", "environment": event.environment})
        case StartFailedEvent():
            return Message({"event": "start_failed", "error": event.error})
        case BeatEvent():
            memory = asdict(event.memory)
            sampler = None if event.sampler is None else asdict(event.sampler)
            beat = {"event": "beat", "turns": event.turns, "busy": event.busy, "memory": memory, "sampler": sampler}
            return Message(beat)
        case ReleasedEvent():
            return Message({"event": "released", "id": event.number})
        case PiecesEvent():
            rows, body = encode_pieces(event.pieces)
            return Message({"event": "pieces", "ids": event.numbers, **rows}, body)
        case DoneEvent():
            return Message({"event": "done", "id": event.number, "values": event.reply.values}, event.reply.body)
        case FailedEvent():
            return Message({"event": "failed", "id": event.number, "error": encode_error(event.error)})


def decode_event(message: Message) -> WorkerEvent:
    values = message.values
    match values["event"]:
        case "ready":
            return ReadyEvent(values["environment"])
        case "start_failed":
            return StartFailedEvent(values["error"])
        case "beat":
            memory = values.get("memory", {})
            gpus = tuple(GpuMemory(**gpu) for gpu in memory.get("gpus", ()))
            found = values.get("sampler")
            sampler = None if found is None else SamplerStatus(**found)
            held = None if memory.get("held") is None else HeldMemory(**memory["held"])
            memory_of = WorkerMemory(memory.get("resident_bytes"), gpus, held)
            return BeatEvent(values["turns"], values["busy"], memory_of, sampler)
        case "released":
            return ReleasedEvent(values["id"])
        case "pieces":
            return PiecesEvent(tuple(values["ids"]), tuple(decode_pieces(values, message.body)))
        case "done":
            return DoneEvent(values["id"], Message(values["values"], message.body))
        case "failed":
            return FailedEvent(values["id"], decode_error(values["error"]))
    raise ValueError(f"a worker has no event {values['event']!r}")


def encode_reply(reply: WorkerReply) -> Message:
    return Message(*_encode(reply))


def decode_reply(kind: type[ReplyT], message: Message) -> ReplyT:
    return _decode(kind, dict(message.values), message.body)


def encode_error(error: RequestError) -> dict[str, Any]:  # Any: plain JSON
    return {
        "category": "user" if isinstance(error, BadRequest) else "server",
        "message": _as_text(str(error)),
        "code": error.code,
        "needed_bytes": error.needed_bytes,
        "reason": None if error.reason is None else _as_text(error.reason),
    }


def decode_error(values: Mapping[str, Any]) -> RequestError:
    kind = BadRequest if values["category"] == "user" else ServerFailure
    return kind(values["message"], code=values["code"], needed_bytes=values["needed_bytes"], reason=values["reason"])


class WorkerCalls(abc.ABC):
    """The calls of ``Worker`` as methods, in terms of one method that sends any of them."""

    @property
    def replicas(self) -> tuple[Self, ...]:
        return (self,)

    @abc.abstractmethod
    async def send(
        self,
        call: WorkerCall,
        reply: type[ReplyT],
        *,
        on_release: Callable[[], None] = lambda: None,
        on_pieces: OnPieces = lambda _: None,
        generation: int | None = None,
    ) -> ReplyT:
        """Send the call and wait for its reply."""

    async def open_run(
        self,
        run_id: str,
        *,
        owner: str,
        base_model: str,
        spec: RunSpec,
        must_fit: bool = False,
        generation: int | None = None,
    ) -> None:
        call = OpenRunCall(run_id=run_id, owner=owner, base_model=base_model, spec=spec, must_fit=must_fit)
        await self.send(call, EmptyReply, generation=generation)

    async def close_run(self, run_id: str, *, generation: int | None = None) -> None:
        await self.send(CloseRunCall(run_id=run_id), EmptyReply, generation=generation)

    async def forward_backward(
        self,
        run_id: str,
        body: bytes,
        *,
        elementwise_loss: bool = False,
        loss_limits: LossLimits = "enforced",
        routing_bytes: int = 0,
        tokens_per_micro_batch: int | None = None,
        is_replay: bool = False,
        generation: int | None = None,
    ) -> PassReply:
        call = ForwardBackwardCall(
            run_id=run_id,
            body=body,
            elementwise_loss=elementwise_loss,
            loss_limits=loss_limits,
            routing_bytes=routing_bytes,
            tokens_per_micro_batch=tokens_per_micro_batch,
            is_replay=is_replay,
        )
        return await self.send(call, PassReply, generation=generation)

    async def optim_step(
        self, run_id: str, params: Mapping[str, Any], *, generation: int | None = None
    ) -> StepReply:  # Any: plain JSON
        return await self.send(OptimStepCall(run_id=run_id, params=params), StepReply, generation=generation)

    async def save(
        self, call: SaveCall, *, on_release: Callable[[], None] = lambda: None, generation: int | None = None
    ) -> SaveReply:
        return await self.send(call, SaveReply, on_release=on_release, generation=generation)

    async def snapshot(
        self, run_id: str, archive: str, *, reserve_bytes: int = 0, generation: int | None = None
    ) -> None:
        call = SnapshotCall(run_id=run_id, archive=archive, reserve_bytes=reserve_bytes)
        await self.send(call, EmptyReply, generation=generation)

    async def load(
        self,
        run_id: str,
        archive: str,
        *,
        with_optimizer: bool,
        seal: str | None = None,
        generation: int | None = None,
    ) -> None:
        call = LoadCall(run_id=run_id, archive=archive, with_optimizer=with_optimizer, seal=seal)
        await self.send(call, EmptyReply, generation=generation)

    async def add_loss(
        self, loss_id: str, definition: Mapping[str, Any], *, generation: int | None = None
    ) -> None:  # Any: plain JSON
        await self.send(AddLossCall(loss_id=loss_id, definition=definition), EmptyReply, generation=generation)

    async def drop_loss(self, loss_id: str) -> None:
        await self.send(DropLossCall(loss_id=loss_id), EmptyReply)

    async def layout(self, base_model: str, spec: RunSpec) -> LayoutReply:
        return await self.send(LayoutCall(base_model=base_model, spec=spec), LayoutReply)

    async def sample(self, call: SampleCall, *, on_pieces: OnPieces = lambda _: None) -> SampleReply:
        return await self.send(call, SampleReply, on_pieces=on_pieces)

    async def cancel(self, key: str) -> None:
        await self.send(CancelCall(key=key), EmptyReply)

    async def forget(self, archive: str) -> None:
        await self.send(ForgetCall(archive=archive), EmptyReply)

    async def written(self, archive: str) -> None:
        await self.send(WrittenCall(archive=archive), EmptyReply)


def values_of(call: WorkerCall) -> dict[str, Any]:  # Any: plain JSON
    """The fields of a call as plain JSON, without its body."""
    return _encode(call)[0]


def _encode(value: Any) -> tuple[dict[str, Any], bytes]:  # Any: a dataclass of this file or of ``protocol``
    values: dict[str, Any] = {}
    body = b""
    for each in fields(value):
        content = getattr(value, each.name)
        if each.type == _BYTES:
            body = content
        else:
            values[each.name] = _as_json(content)
    return values, body


def _as_json(content: Any) -> Any:  # Any: plain JSON, but for what is converted here
    if isinstance(content, RunSpec):
        return content.to_json()
    if isinstance(content, tuple):
        return list(content)
    if isinstance(content, Mapping):
        return dict(content)
    return content


def _decode(kind: type[T], values: dict[str, Any], body: bytes) -> T:
    for each in fields(kind):  # type: ignore[arg-type]  # every kind is a dataclass
        if each.type == _BYTES:
            values[each.name] = body
    return kind(**values)


def _as_text(text: str) -> str:
    """JSON text of an error message: the name of a file need not be valid UTF-8."""
    return text.encode(errors="replace").decode()
