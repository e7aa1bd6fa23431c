from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson
import pytest

from chockstone.backends.calls import (
    AddLossCall,
    BeatEvent,
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
    NumberedCall,
    OpenRunCall,
    OptimStepCall,
    PiecesEvent,
    ReadyEvent,
    ReleasedEvent,
    ReplyT,
    SnapshotCall,
    StartFailedEvent,
    StopCall,
    WorkerCall,
    WorkerCalls,
    WorkerEvent,
    WorkerReply,
    WrittenCall,
    decode_call,
    decode_error,
    decode_event,
    decode_reply,
    encode_call,
    encode_error,
    encode_event,
    encode_reply,
    name_of,
)
from chockstone.backends.channel import Message
from chockstone.backends.protocol import (
    GpuMemory,
    HeldMemory,
    LayoutReply,
    OnPieces,
    PassReply,
    RunSpec,
    SampleCall,
    SampledPiece,
    SampleReply,
    SamplerStatus,
    SaveCall,
    SaveReply,
    StepReply,
    WorkerMemory,
)
from chockstone.telemetry.origin import RequestOrigin
from chockstone.wire.failures import BadRequest, RequestError, ServerFailure

PIECE = SampledPiece(1, (5, 6), (-0.5, -0.25), "stop", start=3)
SPEC = RunSpec(rank=4, seed=-7, train_mlp=False, optimizer="sgd")
CALLS: dict[str, WorkerCall] = {
    "open_run": OpenRunCall(run_id="r", base_model="tiny", spec=SPEC, owner="ann"),
    "close_run": CloseRunCall(run_id="r"),
    "forward_backward": ForwardBackwardCall(run_id="r", body=b"\x00\xff", elementwise_loss=True, loss_limits="lifted"),
    "optim_step": OptimStepCall(run_id="r", params={"learning_rate": 0.1}),
    "save": SaveCall(
        run_id="r",
        archive="a",
        kind="external_weights",
        metadata={"spec": {"rank": 4}, "name": "ä"},
        ttl_seconds=60,
        recipients=("age1x", "age1y"),
        allowance_bytes=7,
        reserve_bytes=8,
    ),
    "snapshot": SnapshotCall(run_id="r", archive="a", reserve_bytes=8),
    "load": LoadCall(run_id="r", archive="a", with_optimizer=True, seal="0f"),
    "add_loss": AddLossCall(loss_id="l", definition={"graph": {"nodes": [1]}, "inputs": []}),
    "drop_loss": DropLossCall(loss_id="l"),
    "layout": LayoutCall(base_model="tiny", spec=SPEC),
    "sample": SampleCall(key="k", base_model="tiny", seed=5, body=b"{}", owner="ann", archive="a", seal="0f"),
    "cancel": CancelCall(key="k"),
    "forget": ForgetCall(archive="a"),
    "written": WrittenCall(archive="a"),
}
REPLIES: list[WorkerReply] = [
    EmptyReply(),
    PassReply(result=b"\x00\xff", tokens=3, seconds=0.5),
    StepReply(metrics={"loss": 1.5}, seconds=0.5),
    SaveReply(size_bytes=7, seal="0f", seconds=0.5),
    LayoutReply(run={"layout": [["a.lora_A", [4, 8]]]}, scale=2.0),
    SampleReply(content=b"\x00\xff", tokens=3, prompt_tokens=2),
]
EVENTS: list[WorkerEvent] = [
    ReadyEvent({"device": "cpu"}),
    StartFailedEvent("no such model"),
    BeatEvent(3, busy=True),
    BeatEvent(3, busy=True, memory=WorkerMemory(1 << 30, (GpuMemory("H100", 5, 80),), HeldMemory(7, 8, 9))),
    BeatEvent(4, busy=False, sampler=SamplerStatus(requests=2, decode_steps=7, weights_cache_bytes=5)),
    ReleasedEvent(1),
    PiecesEvent((7, 8), (PIECE, SampledPiece(0, (9,), (-1.0,)))),
    DoneEvent(1, Message({"tokens": 3}, b"\x00\xff")),
]


def travelled(message: Message) -> Message:
    """The message as it leaves the channel at the other end."""
    return Message(orjson.loads(orjson.dumps(message.values)), message.body)


@pytest.mark.parametrize("call", [*CALLS.values(), StopCall()], ids=name_of)
def test_a_call_is_decoded_as_it_was_encoded(call: WorkerCall) -> None:
    assert decode_call(travelled(encode_call(7, call))) == NumberedCall(7, call)


def test_a_body_travels_as_bytes_and_not_as_json() -> None:
    message = encode_call(7, CALLS["forward_backward"])

    assert message.body == b"\x00\xff"
    assert "body" not in message.values["values"]


@pytest.mark.parametrize("reply", REPLIES, ids=lambda reply: type(reply).__name__)
def test_a_reply_is_decoded_as_it_was_encoded(reply: WorkerReply) -> None:
    kind: Any = type(reply)

    assert decode_reply(kind, travelled(encode_reply(reply))) == reply


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_an_event_is_decoded_as_it_was_encoded(event: WorkerEvent) -> None:
    assert decode_event(travelled(encode_event(event))) == event


def test_an_event_of_no_known_kind_is_an_error() -> None:
    with pytest.raises(ValueError, match="no event 'later'"):
        decode_event(Message({"event": "later"}))


@pytest.mark.parametrize("kind", [BadRequest, ServerFailure])
def test_an_error_keeps_its_kind_and_its_facts(kind: type[RequestError]) -> None:
    error = kind("there is no room", code="no_room", needed_bytes=7, reason="block 3")

    event = decode_event(travelled(encode_event(FailedEvent(1, error))))

    assert isinstance(event, FailedEvent) and event.number == 1
    found = event.error
    assert (type(found), str(found)) == (kind, "there is no room")
    assert (found.code, found.needed_bytes, found.reason) == ("no_room", 7, "block 3")


def test_an_error_about_a_file_whose_name_is_no_text_can_be_encoded() -> None:
    error = decode_error(orjson.loads(orjson.dumps(encode_error(BadRequest("no \udcff", reason="\udcff")))))

    assert (str(error), error.reason) == ("no ?", "?")


class Recorder(WorkerCalls):
    def __init__(self) -> None:
        self.sent: list[tuple[WorkerCall, int | None]] = []

    async def send(
        self,
        call: WorkerCall,
        reply: type[ReplyT],
        *,
        on_release: Callable[[], None] = lambda: None,
        on_pieces: OnPieces = lambda _: None,
        generation: int | None = None,
    ) -> ReplyT:
        self.sent.append((call, generation))
        on_release()
        on_pieces([PIECE])
        return next(each for each in REPLIES if isinstance(each, reply))


async def test_each_method_sends_the_call_of_its_name() -> None:
    recorder, released = Recorder(), []
    pieces: list[SampledPiece] = []
    save, sample = CALLS["save"], CALLS["sample"]
    assert isinstance(save, SaveCall) and isinstance(sample, SampleCall)

    await recorder.open_run("r", owner="ann", base_model="tiny", spec=SPEC, generation=1)
    await recorder.close_run("r", generation=2)
    passed = await recorder.forward_backward(
        "r", b"\x00\xff", elementwise_loss=True, loss_limits="lifted", generation=3
    )
    stepped = await recorder.optim_step("r", {"learning_rate": 0.1}, generation=4)
    saved = await recorder.save(save, on_release=lambda: released.append(True), generation=5)
    await recorder.snapshot("r", "a", reserve_bytes=8, generation=6)
    await recorder.load("r", "a", with_optimizer=True, seal="0f", generation=7)
    await recorder.add_loss("l", {"graph": {"nodes": [1]}, "inputs": []}, generation=8)
    await recorder.drop_loss("l")
    laid_out = await recorder.layout("tiny", SPEC)
    sampled = await recorder.sample(sample, on_pieces=pieces.extend)
    await recorder.cancel("k")
    await recorder.forget("a")
    await recorder.written("a")

    assert [call for call, _ in recorder.sent] == list(CALLS.values())
    assert [generation for _, generation in recorder.sent] == [*range(1, 9), *[None] * 6]
    assert [name_of(call) for call, _ in recorder.sent] == list(CALLS)
    assert [passed, stepped, saved, laid_out, sampled] == REPLIES[1:]
    assert released == [True]
    assert pieces == [PIECE]


def test_a_call_has_its_origin_if_that_is_known() -> None:
    origin = RequestOrigin("r-1", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")

    assert decode_call(travelled(encode_call(7, StopCall(), origin))) == NumberedCall(7, StopCall(), origin)
    assert "origin" not in encode_call(7, StopCall()).values
