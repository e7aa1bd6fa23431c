"""Requests, and fleets that are quick to notice things."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from chockstone.sampling.vllm.adapters import AdapterFiles
from chockstone.sampling.vllm.fleet import Fleet
from chockstone.sampling.vllm.model_facts import ModelFacts
from chockstone.wire.codecs.samples import SampleRequest, SampleResult, SamplingParams
from support.vllm.stub import EOS, MODEL, VOCABULARY, Stub

FACTS = ModelFacts(MODEL, VOCABULARY, 8, 64, frozenset({EOS}))


def request(prompt: tuple[int, ...] = (5, 6, 7), samples: int = 1, **fields: Any) -> SampleRequest:
    """``fields`` are those of the request, and of its sampling parameters."""
    own = {name: fields.pop(name) for name in list(fields) if name in SampleRequest.__slots__}
    params = SamplingParams(**{"max_tokens": 8, **fields})
    return SampleRequest(np.array(prompt, np.int32), samples, params, **own)


def adapter(number: int, *, has_head: bool = False) -> AdapterFiles:
    return AdapterFiles(f"chockstone-{number}", f"/adapters/{number}", has_head=has_head)


@asynccontextmanager
async def fleet(*stubs: Stub, most_adapters: int = 2, wait_seconds: float = 30.0) -> AsyncIterator[Fleet]:
    with TemporaryDirectory() as directory:
        made = Fleet(
            [stub.url for stub in stubs],
            {MODEL: FACTS},
            directory=Path(directory),
            most_adapters=most_adapters,
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


def tokens_of(result: SampleResult) -> list[list[int]]:
    return [sequence.tokens.tolist() for sequence in result.sequences]


async def until(is_so: Any) -> None:
    async with asyncio.timeout(10):
        while not is_so():
            await asyncio.sleep(0.005)
