"""Streams of samples: pieces in order, once each, also when workers die and readers are slow or leave."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import orjson
import pytest

from chockstone.checkpoints import Store
from chockstone.engine.config import Busy, EngineLimits
from chockstone.engine.futures import Result
from chockstone.engine.samples.streams import SampledPiece, SampleStream
from chockstone.wire.codecs.sample_result import read_sequences
from chockstone.wire.failures import BadRequest, ServerFailure
from support.engine.fake_backend import FakeBackend, sequence_of
from support.engine.making import until
from support.engine.sampling_lives import BASE, SOURCE, Life, life

BODY = orjson.dumps({"num_samples": 1})


@pytest.fixture
async def server(tmp_path: Path, store: Store) -> AsyncIterator[Life]:
    backend = FakeBackend(store)
    async with life(tmp_path / "samples", backend) as server:
        yield server
        backend.let_everything_go()


async def start(server: Life, sequences: Sequence[Sequence[int]] = ((5, 6, 7, 8),)) -> SampleStream:
    server.backend.sequences = [sequence_of(tokens) for tokens in sequences]
    return await server.sampling.stream(SOURCE, BODY, num_samples=len(sequences))


async def rest(stream: SampleStream) -> list[SampledPiece]:
    return [piece async for piece in stream]


def joined(pieces: Sequence[SampledPiece], choice: int = 0) -> list[int]:
    return [token for piece in pieces if piece.choice == choice for token in piece.tokens]


async def test_pieces_come_while_the_sample_is_generated(server: Life) -> None:
    server.backend.hold("token 2")
    stream = await start(server)

    early = [await anext(stream)]
    if joined(early) == [5]:
        early.append(await anext(stream))
    assert (joined(early), stream.result) == ([5, 6], None)

    server.backend.let_go("token 2")
    late = await rest(stream)
    assert joined(late) == [7, 8]
    assert [piece.stop_reason for piece in [*early, *late]][-1] == "stop"
    assert [logprob for piece in [*early, *late] for logprob in piece.logprobs] == [0, -0.25, -0.5, -0.75]


async def test_the_result_is_that_of_a_sample_that_is_not_streamed(server: Life) -> None:
    stream = await start(server)
    await rest(stream)

    submitted = await server.submit(0)
    assert stream.result == await server.result(submitted.request_id)


async def test_sequences_end_each_at_their_own_time(server: Life) -> None:
    server.backend.hold("token 2")
    stream = await start(server, [[5, 6, 7, 8], [9, 10]])

    early = [await anext(stream) for _ in range(2)]
    server.backend.let_go("token 2")
    pieces = [*early, *await rest(stream)]

    assert (joined(pieces, 0), joined(pieces, 1)) == ([5, 6, 7, 8], [9, 10])
    assert [piece.choice for piece in pieces if piece.stop_reason] == [1, 0]


async def test_the_last_piece_comes_after_the_result_is_on_record(
    server: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    settle = server.journal.settle
    recorded: list[asyncio.Future[None]] = []

    def note(*given: object, **options: object) -> asyncio.Future[None]:
        recorded.append(settle(*given, **options))  # type: ignore[arg-type]  # as they were given
        return recorded[-1]

    monkeypatch.setattr(server.journal, "settle", note)
    stream = await start(server)
    async for piece in stream:
        assert (piece.stop_reason is not None) == bool(recorded and recorded[0].done())

    assert joined([piece])[-1:] == [8]


async def test_a_reader_that_is_slow_gets_fewer_and_longer_pieces(server: Life) -> None:
    stream = await start(server, [list(range(100)), list(range(50))])
    await until(lambda: stream.result is not None)

    pieces = await rest(stream)

    assert len(pieces) == 2
    assert (joined(pieces, 0), joined(pieces, 1)) == (list(range(100)), list(range(50)))


async def test_a_worker_that_dies_in_mid_stream_repeats_no_token_and_loses_none(server: Life) -> None:
    server.backend.hold("token 2")
    stream = await start(server)
    pieces = [await anext(stream)]
    await until(lambda: server.backend.values_of("sample"))

    server.backend.die("signal 9")
    pieces += await rest(stream)

    assert joined(pieces) == [5, 6, 7, 8]
    assert [piece.start for piece in pieces] == [sum(len(p.tokens) for p in pieces[:n]) for n in range(len(pieces))]
    first, again = server.backend.values_of("sample")
    assert first == again


@pytest.mark.parametrize("second", [[5, 9, 7, 8], [5]], ids=["other token", "shorter"])
async def test_a_second_run_with_other_tokens_ends_the_stream_with_an_error(server: Life, second: list[int]) -> None:
    server.backend.hold("token 2")
    stream = await start(server)
    read = joined([await anext(stream)])
    if read == [5]:
        read += joined([await anext(stream)])
    assert read == [5, 6]

    server.backend.sequences = [sequence_of(second)]
    server.backend.die("signal 9")

    with pytest.raises(ServerFailure, match="the tokens of the second run differ"):
        await rest(stream)


async def test_closing_a_stream_cancels_the_sample(server: Life) -> None:
    server.backend.hold("token 2")
    stream = await start(server)
    await anext(stream)

    await stream.aclose()
    await stream.aclose()

    assert await rest(stream) == []
    await until(lambda: "cancel" in server.backend.words())
    assert server.backend.values_of("cancel") == [{"key": stream.request_id}]
    server.backend.let_go("token 2")
    await until(lambda: not server.sampling.waiting)
    assert server.futures.get(stream.request_id) is None


async def test_a_reader_that_waits_is_woken_when_the_stream_is_closed(server: Life) -> None:
    server.backend.hold("token 0")
    stream = await start(server)
    waiting = asyncio.create_task(rest(stream))
    await asyncio.sleep(0)

    await stream.aclose()

    assert await waiting == []


async def test_what_the_worker_refuses_the_stream_raises(server: Life) -> None:
    server.backend.fail_next("sample", BadRequest("the prompt is too long"))
    stream = await start(server)

    with pytest.raises(BadRequest, match="the prompt is too long"):
        await anext(stream)
    assert stream.result is not None and stream.result.is_failure


async def test_streams_and_other_samples_share_the_queue(tmp_path: Path, store: Store) -> None:
    backend = FakeBackend(store)
    async with life(tmp_path / "samples", backend, limits=EngineLimits(samples=1)) as server:
        backend.hold("token 0")
        first = await server.sampling.stream(BASE, BODY, num_samples=1)
        with pytest.raises(Busy):
            await server.sampling.stream(BASE, BODY, num_samples=1)
        backend.let_go("token 0")

        assert joined(await rest(first)) == [1, 2, 3]


async def test_a_stream_is_counted_once_and_leaves_nothing_behind(server: Life) -> None:
    stream = await start(server)
    await rest(stream)

    assert [used.tokens for used in server.usage] == [4]
    assert server.futures.get(stream.request_id) is None
    assert await server.completed() == []


async def test_a_server_that_stops_breaks_its_streams_off_and_the_next_one_does_not_run_them(
    tmp_path: Path, store: Store
) -> None:
    backend = FakeBackend(store)
    async with life(tmp_path / "samples", backend, grace_seconds=0) as server:
        backend.hold("token 1")
        stream = await server.sampling.stream(BASE, BODY, num_samples=1)
        await until(lambda: server.backend.values_of("sample"))
        left = server.crashed("after a crash")
    with pytest.raises(ServerFailure, match="the server stops"):
        await rest(stream)

    for directory in (tmp_path / "samples", left):
        after = FakeBackend(store)
        async with life(directory, after) as server:
            assert server.sampling.waiting == 0
        assert after.words() == []


def test_a_stream_holds_no_more_than_its_result() -> None:
    """A reader that never reads costs eight bytes a token."""
    stream = SampleStream("r", close=lambda: None)
    for position in range(1000):
        stream.take([SampledPiece(0, (position,), (-1.0,), None, position)])

    choice = stream._choices[0]
    assert (choice.tokens.itemsize, choice.logprobs.itemsize) == (4, 4)
    assert (len(choice.tokens), len(stream._unread)) == (1000, 1)


async def test_a_gap_in_the_tokens_is_an_error() -> None:
    closed: list[bool] = []
    stream = SampleStream("r", close=lambda: closed.append(True))
    stream.take([SampledPiece(0, (1,), (-1.0,), None, 1)])

    with pytest.raises(ServerFailure):
        await anext(stream)
    assert closed == [True]
    stream.end(Result(b"", "sample"))


async def test_a_large_result_is_delivered_whole(server: Life) -> None:
    tokens = list(range(40_000))
    stream = await start(server, [tokens])
    await until(lambda: stream.result is not None)

    assert joined(await rest(stream)) == tokens
    assert stream.result is not None and len(read_sequences(stream.result.body)[0].tokens) == 40_000
