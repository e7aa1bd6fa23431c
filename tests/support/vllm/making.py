"""Requests, and fleets that are quick to notice things."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from chockstone.sampling.vllm.adapters import AdapterFiles
from chockstone.sampling.vllm.fleet import Fleet
from chockstone.sampling.vllm.gap_probe import ExactPath
from chockstone.sampling.vllm.model_facts import ModelFacts
from chockstone.wire.codecs.samples import Floats, SampleRequest, SampleResult, SamplingParams, Tokens
from chockstone.wire.sampler_gap import SamplerGap
from support.vllm.stub import EOS, MODEL, VOCABULARY, Stub, logprobs_after

FACTS = ModelFacts(MODEL, VOCABULARY, 8, 64, frozenset({EOS}))


def request(prompt: tuple[int, ...] = (5, 6, 7), samples: int = 1, **fields: Any) -> SampleRequest:
    """``fields`` are those of the request, and of its sampling parameters."""
    own = {name: fields.pop(name) for name in list(fields) if name in SampleRequest.__slots__}
    params = SamplingParams(**{"max_tokens": 8, **fields})
    return SampleRequest(np.array(prompt, np.int32), samples, params, **own)


def adapter(number: int, *, has_head: bool = False) -> AdapterFiles:
    return AdapterFiles(f"chockstone-{number}", f"/adapters/{number}", has_head=has_head)


@asynccontextmanager
async def fleet(
    *stubs: Stub, most_adapters: int = 2, gap_limit: float | None = None, wait_seconds: float = 30.0
) -> AsyncIterator[Fleet]:
    with TemporaryDirectory() as directory:
        made = Fleet(
            [stub.url for stub in stubs],
            {MODEL: FACTS},
            directory=Path(directory),
            most_adapters=most_adapters,
            gap_limit=gap_limit,
            wait_seconds=wait_seconds,
        )
        try:
            await made.start()
            yield made
        finally:
            await made.close()
        assert not list(Path(directory).iterdir())


async def sample(servers: Fleet, asked: SampleRequest, number: int | None = None, *, seed: int = 0) -> SampleResult:
    result = await servers.sample(asked, MODEL, None if number is None else adapter(number), seed=seed)
    assert result is not None
    return result


class Exact:
    """The exact path of the stub's model: the same numbers, unless a test changes them."""

    def __init__(self, number: int | None = None) -> None:
        self.adapter = "" if number is None else adapter(number).name
        self.reported: list[SamplerGap] = []
        self.scored = 0
        self.failure: Exception | None = None
        self.gate = asyncio.Event()  # scores wait for it
        self.gate.set()
        self.path = ExactPath(self.adapter or None, self._score, self._report)

    async def _score(self, texts: Sequence[Tokens]) -> list[Floats]:
        self.scored += 1
        await self.gate.wait()
        if self.failure is not None:
            raise self.failure
        return [score_text(text.tolist(), self.adapter) for text in texts]

    async def _report(self, gap: SamplerGap) -> None:
        self.reported.append(gap)


def score_text(text: list[int], adapter: str) -> Floats:
    """Logprobs of all tokens but the first, by the stub's model."""
    pairs = itertools.pairwise(text)
    return np.array([logprobs_after(last, adapter)[token] for last, token in pairs], np.float32)


def tokens_of(result: SampleResult) -> list[list[int]]:
    return [sequence.tokens.tolist() for sequence in result.sequences]


async def until(is_so: Any) -> None:
    async with asyncio.timeout(10):
        while not is_so():
            await asyncio.sleep(0.005)
