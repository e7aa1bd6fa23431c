"""Prefixes: prompts that share a system prompt, on a server with a prefix cache and on one without."""

from __future__ import annotations

from contextlib import ExitStack
from itertools import count
from time import perf_counter
from typing import Any

import tinker
from tinker import types

from benchmarks.harness.context import Context
from benchmarks.harness.rounds import Metrics, Rows, Turn
from benchmarks.live.client import session
from benchmarks.live.models import Model, Tokens
from benchmarks.live.server import LiveServer
from benchmarks.server.scale import LARGE
from benchmarks.server.setup import Setup

CACHED = "with the prefix cache"
COMPUTED = "without it"
USERS = 32
SYSTEM_TOKENS = 512
QUESTION_TOKENS = 32
ANSWER_TOKENS = 16
ALONE = 4  # requests that are sent one by one, to compare all of their bits


def measure_prefixes(context: Context, setup: Setup) -> Rows:
    """Each round has a new system prompt, so the first request of a round finds nothing."""
    model = setup.models[LARGE]
    context.describe(
        f"{model.title} model, {USERS} users × ({SYSTEM_TOKENS} tokens in common + {QUESTION_TOKENS}), "
        f"{ANSWER_TOKENS} tokens each"
    )
    with ExitStack() as stack:
        samplers = {
            name: _sampler(
                stack, setup.new_server(f"prefixes-{bytes_}", LARGE, f"--prefix-cache-bytes={bytes_}"), model
            )
            for name, bytes_ in ((CACHED, 512 << 20), (COMPUTED, 0))
        }
        differing = _differing(model, samplers)

        def turn_of(name: str) -> Turn:
            numbers = count()

            def turn() -> Metrics:
                prompts = _prompts(model, USERS, seed=1000 + next(numbers))
                started = perf_counter()
                answers = _ask(samplers[name], prompts)
                rate = USERS * ANSWER_TOKENS / (perf_counter() - started)
                hits = sum(answer.prompt_cache_hit_tokens or 0 for answer in answers)
                return {"tokens_per_second": rate, "hits": float(hits), "differing": float(differing)}

            return turn

        return context.run_rounds({name: turn_of(name) for name in samplers}, repeats=setup.scale.prefix_rounds)


def _sampler(stack: ExitStack, server: LiveServer, model: Model) -> tinker.SamplingClient:
    service = stack.enter_context(session(stack.enter_context(server).url))
    return service.create_sampling_client(base_model=model.name)


def _prompts(model: Model, users: int, *, seed: int) -> list[Tokens]:
    (system,) = model.draw(1, SYSTEM_TOKENS, seed=seed)
    return [system + question for question in model.draw(users, QUESTION_TOKENS, seed=seed + 500)]


def _ask(sampler: tinker.SamplingClient, prompts: list[Tokens], **options: Any) -> list[types.SampleResponse]:
    params = types.SamplingParams(max_tokens=ANSWER_TOKENS, temperature=1.0, seed=7, stop=[])
    futures = [
        sampler.sample(types.ModelInput.from_ints(prompt), num_samples=1, sampling_params=params, **options)
        for prompt in prompts
    ]
    return [future.result() for future in futures]


def _differing(model: Model, samplers: dict[str, tinker.SamplingClient]) -> int:
    """Answers that are not the same to the last bit. Asked one by one: a batch of another size may round otherwise."""
    answers = {
        name: [_ask(sampler, [prompt])[0] for prompt in _prompts(model, ALONE, seed=1)]
        for name, sampler in samplers.items()
    }
    if not all(answer.prompt_cache_hit_tokens for answer in answers[CACHED][1:]):
        raise RuntimeError("nothing came from the prefix cache")
    pairs = zip(answers[CACHED], answers[COMPUTED], strict=True)
    return sum(_bits(one) != _bits(other) for one, other in pairs)


def _bits(answer: types.SampleResponse) -> list[tuple[list[int], list[float] | None]]:
    return [(sequence.tokens, sequence.logprobs) for sequence in answer.sequences]
