"""Streams from a real worker: the tokens of its sampler, also when it is killed in mid-stream or the reader leaves."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from chockstone.backends.supervision.local import LocalBackend
from chockstone.backends.supervision.process import WorkerConfig
from chockstone.engine.config import EngineLimits
from chockstone.engine.futures import Futures
from chockstone.engine.samples.sampling import SamplerSource, Sampling
from chockstone.engine.samples.streams import SampledPiece, SampleStream
from chockstone.wire.codecs.sample_result import read_sequences
from support.backends.bodies import sample_body
from support.backends.saving import make_directory
from support.engine.making import until

SOURCE = SamplerSource("s:sample:0", "local", "tiny", None)
LONG = sample_body([3, 4, 5], num_samples=512, max_tokens=60)


@dataclass
class Rig:
    sampling: Sampling
    backend: LocalBackend

    async def stream(self, body: bytes = LONG) -> SampleStream:
        return await self.sampling.stream(SOURCE, body, num_samples=512)

    def kill_worker(self) -> None:
        handle = self.backend._handle
        assert handle is not None
        os.kill(handle._spawned.process.pid, signal.SIGKILL)  # type: ignore[attr-defined]  # of a local worker


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    directory = make_directory(tmp_path / "base", "qwen3", tied=True)
    config = WorkerConfig(models={"tiny": str(directory)}, store=str(tmp_path / "store"), device="cpu", threads=1)
    backend = LocalBackend(config)
    await backend.start()
    try:
        await backend.ready()
        yield Rig(Sampling(backend, Futures(now=lambda: 0.0), EngineLimits()), backend)
    finally:
        await backend.stop()


def joined(pieces: list[SampledPiece]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for piece in pieces:
        tokens = found.setdefault(piece.choice, [])
        assert piece.start == len(tokens), "a token was lost or repeated"
        tokens += piece.tokens
    return found


def result_of(stream: SampleStream) -> dict[int, list[int]]:
    assert stream.result is not None and not stream.result.is_failure
    return {number: each.tokens.tolist() for number, each in enumerate(read_sequences(stream.result.body))}


async def test_a_stream_of_a_worker_that_is_killed_repeats_no_token_and_loses_none(rig: Rig) -> None:
    stream = await rig.stream()
    pieces = [await anext(stream)]
    assert stream.result is None

    rig.kill_worker()
    pieces += [piece async for piece in stream]

    assert rig.backend.status.deaths == 1
    assert len(pieces) > 2
    assert joined(pieces) == result_of(stream)


async def test_closing_a_stream_frees_its_places_in_the_sampler(rig: Rig) -> None:
    stream = await rig.stream(sample_body([3, 4, 5], num_samples=512, max_tokens=60))
    await anext(stream)

    await stream.aclose()

    await until(lambda: not rig.sampling.waiting)
    assert stream.result is not None and stream.result.is_failure
    await until(lambda: (s := rig.backend.status.sampler) is not None and s.requests == s.sequences == 0)
