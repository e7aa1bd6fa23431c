"""Talking: the same prompts with the same seeds through the SDK of OpenAI and through that of Tinker."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import count

import tinker
from tinker import types

from benchmarks.endpoint.completing import Endpoint, complete, connected, first_and_rate
from benchmarks.endpoint.peers import open_peers
from benchmarks.endpoint.prompts import Prompt, draw_prompts
from benchmarks.endpoint.setup import MODEL, STREAMS, Setup
from benchmarks.harness.context import Context
from benchmarks.harness.remote import RemoteObject
from benchmarks.harness.rounds import Metrics, Rows, Series, Turn
from benchmarks.live.beats import read_beats
from benchmarks.live.client import session
from benchmarks.live.server import KEY
from benchmarks.server.answering import percentile

WHOLE = "OpenAI SDK"
STREAMED = "OpenAI SDK, streamed"
TINKER = "Tinker SDK"
IDLE = "no stream"
BUSY = f"{STREAMS} streams"
PROMPT_TOKENS = 64
IDLE_SECONDS = 2.0


def measure_talking(context: Context, setup: Setup) -> Rows:
    """Tokens per second of all prompts at once, and the time to the first token of one alone."""
    context.describe(f"{setup.model.title} model, {setup.prompts} prompts of {PROMPT_TOKENS} tokens")
    ours = Endpoint(setup.server.url, MODEL)
    with ExitStack() as stack:
        context.say("peers load the model")
        peers, absent = open_peers(stack, setup.model, threads=context.threads, directory=context.directory)
        sampler = stack.enter_context(session(setup.server.url)).create_sampling_client(base_model=MODEL)
        turns = {
            TINKER: _through_tinker(setup, sampler),
            WHOLE: _through_openai(setup, ours, is_streamed=False),
            STREAMED: _through_openai(setup, ours, is_streamed=True),
            **{name: _through_openai(setup, endpoint, is_streamed=True) for name, endpoint in peers.items()},
        }
        rows = context.run_rounds(turns, repeats=setup.rounds)
    return rows | {peer: Series(failure=reason) for peer, reason in absent.items()}


def measure_streams(context: Context, setup: Setup) -> Rows:
    """How long small requests of another client take beside many streams, and how late the event loop is."""
    context.describe(f"{setup.model.title} model, {STREAMS} streams at once")
    context.say("the spare worker is started")
    setup.server.wait_for_spare()  # its imports take a core for seconds, and the disk
    rows = {IDLE: Series(), BUSY: Series()}
    asyncio.run(_many_streams(setup, seed=0, max_tokens=1))  # starts the tokenizer process
    for number in range(setup.rounds):
        read = partial(_many_streams, setup, seed=number, max_tokens=4 * setup.sampled_tokens)
        rows[BUSY].add(_beside_small_requests(setup, partial(_in_a_loop, read)))
        rows[IDLE].add(_beside_small_requests(setup, lambda: time.sleep(IDLE_SECONDS)))
    return rows


def _through_tinker(setup: Setup, sampler: tinker.SamplingClient) -> Turn:
    numbers = count()

    def turn() -> Metrics:
        seed = next(numbers)
        return _ask_tinker(sampler, _prompts(setup, seed), seed, setup.sampled_tokens)

    return turn


def _through_openai(setup: Setup, endpoint: Endpoint, *, is_streamed: bool) -> Turn:
    numbers = count()
    ask = partial(first_and_rate, endpoint, max_tokens=setup.sampled_tokens, is_streamed=is_streamed)

    def turn() -> Metrics:
        seed = next(numbers)
        return asyncio.run(ask(_prompts(setup, seed), seed=seed))

    return turn


def _prompts(setup: Setup, number: int) -> list[Prompt]:
    """The same for each contestant in a round."""
    return draw_prompts(setup.model, setup.prompts + 1, PROMPT_TOKENS, seed=number)


def _ask_tinker(sampler: tinker.SamplingClient, prompts: Sequence[Prompt], seed: int, max_tokens: int) -> Metrics:
    first, *others = [types.ModelInput.from_ints(prompt.tokens) for prompt in prompts]
    began = time.perf_counter()
    sampler.sample(first, 1, types.SamplingParams(max_tokens=1, seed=seed)).result()
    first_seconds = time.perf_counter() - began
    params = types.SamplingParams(max_tokens=max_tokens, seed=seed)
    began = time.perf_counter()
    answers = [future.result() for future in [sampler.sample(prompt, 1, params) for prompt in others]]
    tokens = sum(len(sequence.tokens) for answer in answers for sequence in answer.sequences)
    return {"first_seconds": first_seconds, "tokens_per_second": tokens / (time.perf_counter() - began)}


async def _many_streams(setup: Setup, *, seed: int, max_tokens: int) -> Metrics:
    endpoint = Endpoint(setup.server.url, MODEL)
    prompts = draw_prompts(setup.model, STREAMS, PROMPT_TOKENS, seed=1000 + seed)
    async with connected(endpoint) as client:
        began = time.perf_counter()
        asked = (
            complete(client, endpoint, prompt, seed=seed, max_tokens=max_tokens, is_streamed=True) for prompt in prompts
        )
        tokens = sum(await asyncio.gather(*asked))
        return {"tokens_per_second": tokens / (time.perf_counter() - began)}


def _in_a_loop(work: Callable[[], Coroutine[object, object, Metrics]]) -> Metrics:
    return asyncio.run(work())


def _beside_small_requests(setup: Setup, work: Callable[[], Metrics | None]) -> Metrics:
    before = read_beats(setup.server.url)
    with RemoteObject("benchmarks.server.probe", "Probe", url=setup.server.url, key=KEY) as probe:
        probe.call("start")
        metrics = work()
        answers = probe.call("stop")
    beats = read_beats(setup.server.url).since(before)
    return {**(metrics or {}), **_latency([taken for _, taken in answers]), "loop_p99": beats.quantile(0.99)}


def _latency(taken: list[float]) -> Metrics:
    return {"p50": percentile(taken, 0.50), "p99": percentile(taken, 0.99)}
