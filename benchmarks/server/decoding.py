"""Decoding: sampled tokens per second and per CPU-second over the number of sequences, beside other samplers.

Contestants sample the same prompts, as many tokens of each, from the same directory; each turn has new prompts. The CPU
time of a contestant is that of all its processes, clients included. The first turn of each contestant is a row of its
own: allocators, caches and compilers make it slower than the others.

Ours and ``generate`` always take part. ``live/peers.py`` says how vLLM and another server with the Tinker API join.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import count
from typing import Final

from benchmarks.harness.aims import divide
from benchmarks.harness.context import Context
from benchmarks.harness.rounds import Metrics, Rows, Series, Turn, extend, reason_of
from benchmarks.live.models import Model, Tokens
from benchmarks.server.peers import open_peers
from benchmarks.server.samplers import Sample, Work, sampling_by_sdk
from benchmarks.server.scale import LARGE, PROMPT_TOKENS, SMALL
from benchmarks.server.setup import Setup

OURS, GENERATE = "chockstone", "generate"
RATE, PER_CPU, FIRST_TOKEN = "tokens_per_second", "tokens_per_cpu_second", "first_token_seconds"
CURVE: Final = (1, 8, 32, 128)
_CURVE_TOKENS: Final = 32
FIRST_BURST = "first burst"


@dataclass(frozen=True, slots=True)
class Burst:
    model: str  # SMALL or LARGE
    sequences: int
    tokens: int  # of each

    def title(self, contestant: str, kind: str = "") -> str:
        return f"{self.model}, {self.sequences} × {self.tokens}, {contestant}" + (f", {kind}" if kind else "")


SMALL_BURST, SMALL_MANY = Burst(SMALL, 16, 64), Burst(SMALL, 64, 64)
LARGE_BURST, LARGE_MANY = Burst(LARGE, 8, 32), Burst(LARGE, 64, 64)
COMPARED: Final = (SMALL_BURST, SMALL_MANY, LARGE_BURST, LARGE_MANY)


def bursts(*, quick: bool) -> list[Burst]:
    """Those with a bound, then the curves. A quick run leaves out the longest."""
    curves = [Burst(model, count, _CURVE_TOKENS) for model in (SMALL, LARGE) for count in CURVE]
    return [
        burst
        for burst in dict.fromkeys((*COMPARED, *curves))
        if not quick or burst.sequences * burst.tokens <= SMALL_BURST.sequences * SMALL_BURST.tokens
    ]


def batched(name: str) -> str:
    """The row of ``generate`` for the same burst."""
    return ", ".join((*name.split(", ")[:2], GENERATE, *name.split(", ")[3:]))


def measure_decoding(context: Context, setup: Setup) -> Rows:
    models = {name: setup.models[name] for name in (SMALL, LARGE)}
    context.describe(", ".join(f"{name} has {model.title}" for name, model in models.items()))
    rows: Rows = {}
    for name, model in models.items():
        with _contestants(context, setup, model) as (contestants, absent):
            for burst in bursts(quick=context.quick):
                if burst.model == name:
                    extend(rows, _measure(context, setup, burst, contestants, model))
            rows |= {f"{name}, {peer}": Series(failure=reason) for peer, reason in absent.items()}
    return rows


def _measure(context: Context, setup: Setup, burst: Burst, contestants: dict[str, Sample], model: Model) -> Rows:
    rows: Rows = {}
    for name, sample in contestants.items():
        context.say(f"{FIRST_BURST}: {burst.title(name)}")
        rows[burst.title(name, FIRST_BURST)] = first = Series()
        try:
            first.add(_figures(sample(_prompts(model, burst, 0)[1:], burst.tokens), burst))
        except Exception as error:  # recorded: reported as "not run" with its reason
            first.failure = reason_of(error)

    def turn_of(sample: Sample) -> Turn:
        numbers = count(1)

        def turn() -> Metrics:
            alone, *prompts = _prompts(model, burst, next(numbers))
            first = sample([alone], 1)
            return _figures(sample(prompts, burst.tokens), burst) | {FIRST_TOKEN: first.seconds}

        return turn

    turns = {
        burst.title(name): turn_of(sample)
        for name, sample in contestants.items()
        if rows[burst.title(name, FIRST_BURST)].failure is None
    }
    return rows | context.run_rounds(turns, repeats=setup.scale.decoding_rounds)


def _prompts(model: Model, burst: Burst, number: int) -> list[Tokens]:
    """One more than the burst has. New ones for each turn, so that prefix caches, which some have, give nothing."""
    seed = 10_000 * burst.sequences + 100 * burst.tokens + number
    return model.draw(burst.sequences + 1, PROMPT_TOKENS, seed=seed)


def _figures(work: Work, burst: Burst) -> Metrics:
    if work.tokens != burst.sequences * burst.tokens:
        raise RuntimeError(f"{work.tokens} tokens came back instead of {burst.sequences * burst.tokens}")
    per_cpu = divide(work.tokens, work.cpu_seconds)
    return {RATE: work.tokens / work.seconds} | ({} if per_cpu is None else {PER_CPU: per_cpu})


@contextmanager
def _contestants(context: Context, setup: Setup, model: Model) -> Iterator[tuple[dict[str, Sample], dict[str, str]]]:
    """All that run, and why the others do not."""
    with ExitStack() as stack:
        setup.baselines.call("prepare_sampling", directory=model.directory)

        def generate(prompts: list[Tokens], tokens: int) -> Work:
            answer = setup.baselines.call("generate", prompts=prompts, samples=1, max_tokens=tokens, together=True)
            return Work(int(answer["tokens"]), answer["seconds"], answer["cpu_seconds"])

        ours = stack.enter_context(sampling_by_sdk(setup.server.url, model.name, setup.server.process))
        context.say(f"peers load the {model.name} model")
        peers, absent = open_peers(stack, model, threads=context.threads, directory=context.directory)
        yield {OURS: ours, GENERATE: generate, **peers}, absent
