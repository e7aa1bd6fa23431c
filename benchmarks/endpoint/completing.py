"""Completing: prompts sent through the SDK of OpenAI, to our server or to another one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass

from openai import AsyncOpenAI
from openai.types import CompletionUsage

from benchmarks.endpoint.prompts import Prompt
from benchmarks.harness.rounds import Metrics
from benchmarks.live.server import KEY


@dataclass(frozen=True, slots=True)
class Endpoint:
    url: str  # of the server
    model: str  # the server's name for it
    takes_tokens: bool = True  # False: prompts are texts


async def first_and_rate(
    endpoint: Endpoint, prompts: Sequence[Prompt], *, seed: int, max_tokens: int, is_streamed: bool
) -> Metrics:
    """The time to the first token of the first prompt, alone; then tokens per second of all others at once."""
    first, *others = prompts
    async with connected(endpoint) as client:
        await client.models.list()  # connects
        began = time.perf_counter()
        await complete(client, endpoint, first, seed=seed, max_tokens=1, is_streamed=is_streamed)
        first_seconds = time.perf_counter() - began
        began = time.perf_counter()
        asked = (
            complete(client, endpoint, prompt, seed=seed, max_tokens=max_tokens, is_streamed=is_streamed)
            for prompt in others
        )
        tokens = sum(await asyncio.gather(*asked))
        return {"first_seconds": first_seconds, "tokens_per_second": tokens / (time.perf_counter() - began)}


def connected(endpoint: Endpoint) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=f"{endpoint.url}/v1", api_key=KEY)


async def complete(
    client: AsyncOpenAI, endpoint: Endpoint, prompt: Prompt, *, seed: int, max_tokens: int, is_streamed: bool
) -> int:
    """How many tokens came."""
    usage = await _complete(client, endpoint, prompt, seed=seed, max_tokens=max_tokens, is_streamed=is_streamed)
    if usage is None or usage.prompt_tokens != len(prompt.tokens):
        raise RuntimeError(f"the server read other tokens than the {len(prompt.tokens)} of the prompt: {usage}")
    return usage.completion_tokens


async def _complete(
    client: AsyncOpenAI, endpoint: Endpoint, prompt: Prompt, *, seed: int, max_tokens: int, is_streamed: bool
) -> CompletionUsage | None:
    sent = prompt.tokens if endpoint.takes_tokens else prompt.text
    if not is_streamed:
        answer = await client.completions.create(model=endpoint.model, prompt=sent, max_tokens=max_tokens, seed=seed)
        return answer.usage
    stream = await client.completions.create(
        model=endpoint.model,
        prompt=sent,
        max_tokens=max_tokens,
        seed=seed,
        stream=True,
        stream_options={"include_usage": True},
    )
    usages = [chunk.usage async for chunk in stream if chunk.usage is not None]
    return usages[-1] if usages else None
