"""Talking: the same prompts with the same seeds through the SDK of OpenAI and through that of Tinker."""

from __future__ import annotations

import asyncio
import time
from itertools import count

import tinker
from openai import AsyncOpenAI
from tinker import types

from benchmarks.endpoint.setup import MODEL, STREAMS, Setup
from benchmarks.harness.context import Context
from benchmarks.harness.remote import RemoteObject
from benchmarks.harness.rounds import Metrics, Rows, Series
from benchmarks.live.client import session
from benchmarks.live.models import Tokens
from benchmarks.live.server import KEY
from benchmarks.server.answering import percentile

WHOLE = "OpenAI SDK"
STREAMED = "OpenAI SDK, streamed"
TINKER = "Tinker SDK"
IDLE = "no stream"
BUSY = f"{STREAMS} streams"
PROMPT_TOKENS = 64


def measure_talking(context: Context, setup: Setup) -> Rows:
    """Tokens per second of all prompts at once, and the time to the first token of one alone."""
    context.describe(f"{setup.model.title} model, {setup.prompts} prompts of {PROMPT_TOKENS} tokens")
    numbers = {name: count() for name in (WHOLE, STREAMED, TINKER)}
    with session(setup.server.url) as service:
        sampler = service.create_sampling_client(base_model=MODEL)

        def through_tinker() -> Metrics:
            prompts, seed = _prompts(setup, next(numbers[TINKER]))
            return _ask_tinker(sampler, prompts, seed, setup.sampled_tokens)

        def through_openai(name: str, *, is_streamed: bool) -> Metrics:
            prompts, seed = _prompts(setup, next(numbers[name]))
            return asyncio.run(_ask_openai(setup, prompts, seed, is_streamed=is_streamed))

        turns = {
            TINKER: through_tinker,
            WHOLE: lambda: through_openai(WHOLE, is_streamed=False),
            STREAMED: lambda: through_openai(STREAMED, is_streamed=True),
        }
        return context.run_rounds(turns, repeats=setup.rounds)


def measure_streams(context: Context, setup: Setup) -> Rows:
    """How long small requests of another client take beside many streams: the event loop answers them."""
    context.describe(f"{setup.model.title} model, {STREAMS} streams at once")
    rows = {IDLE: Series(), BUSY: Series()}
    for number in range(setup.rounds):
        began = time.monotonic()
        with RemoteObject("benchmarks.server.probe", "Probe", url=setup.server.url, key=KEY) as probe:
            probe.call("start")
            metrics = asyncio.run(_many_streams(setup, seed=number))
            answers = probe.call("stop")
        busy_seconds = time.monotonic() - began
        rows[BUSY].add({**metrics, **_latency([taken for _, taken in answers])})
        with RemoteObject("benchmarks.server.probe", "Probe", url=setup.server.url, key=KEY) as probe:
            probe.call("start")
            time.sleep(min(2.0, busy_seconds))
            rows[IDLE].add(_latency([taken for _, taken in probe.call("stop")]))
    return rows


def _prompts(setup: Setup, number: int) -> tuple[list[Tokens], int]:
    """The same for each contestant in a round."""
    return setup.model.draw(setup.prompts + 1, PROMPT_TOKENS, seed=number), number


def _ask_tinker(sampler: tinker.SamplingClient, prompts: list[Tokens], seed: int, max_tokens: int) -> Metrics:
    first, *others = [types.ModelInput.from_ints(prompt) for prompt in prompts]
    began = time.perf_counter()
    sampler.sample(first, 1, types.SamplingParams(max_tokens=1, seed=seed)).result()
    first_seconds = time.perf_counter() - began
    params = types.SamplingParams(max_tokens=max_tokens, seed=seed)
    began = time.perf_counter()
    answers = [future.result() for future in [sampler.sample(prompt, 1, params) for prompt in others]]
    tokens = sum(len(sequence.tokens) for answer in answers for sequence in answer.sequences)
    return {"first_seconds": first_seconds, "tokens_per_second": tokens / (time.perf_counter() - began)}


async def _ask_openai(setup: Setup, prompts: list[Tokens], seed: int, *, is_streamed: bool) -> Metrics:
    first, *others = prompts
    async with AsyncOpenAI(base_url=f"{setup.server.url}/v1", api_key=KEY) as client:
        await client.models.list()  # connects
        began = time.perf_counter()
        await _complete(client, first, seed, 1, is_streamed=is_streamed)
        first_seconds = time.perf_counter() - began
        began = time.perf_counter()
        asked = (_complete(client, each, seed, setup.sampled_tokens, is_streamed=is_streamed) for each in others)
        tokens = sum(await asyncio.gather(*asked))
        return {"first_seconds": first_seconds, "tokens_per_second": tokens / (time.perf_counter() - began)}


async def _complete(client: AsyncOpenAI, prompt: Tokens, seed: int, max_tokens: int, *, is_streamed: bool) -> int:
    """How many tokens came."""
    if not is_streamed:
        answer = await client.completions.create(model=MODEL, prompt=prompt, max_tokens=max_tokens, seed=seed)
        assert answer.usage is not None
        return answer.usage.completion_tokens
    stream = await client.completions.create(
        model=MODEL,
        prompt=prompt,
        max_tokens=max_tokens,
        seed=seed,
        stream=True,
        stream_options={"include_usage": True},
    )
    usages = [chunk.usage async for chunk in stream if chunk.usage is not None]
    return usages[-1].completion_tokens


async def _many_streams(setup: Setup, *, seed: int) -> Metrics:
    prompts = setup.model.draw(STREAMS, PROMPT_TOKENS, seed=1000 + seed)
    async with AsyncOpenAI(base_url=f"{setup.server.url}/v1", api_key=KEY) as client:
        began = time.perf_counter()
        asked = (_complete(client, each, seed, 4 * setup.sampled_tokens, is_streamed=True) for each in prompts)
        tokens = sum(await asyncio.gather(*asked))
        return {"tokens_per_second": tokens / (time.perf_counter() - began)}


def _latency(taken: list[float]) -> Metrics:
    return {"p50": percentile(taken, 0.50), "p99": percentile(taken, 0.99)}
