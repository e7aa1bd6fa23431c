"""Threads: which number of threads suits which model, alone and beside a neighbour that takes half of the cores.

Three servers take turns: one with a single thread, one with a thread for each core, and one that chooses (``--threads``
is not given). Each turn repeats a training step, or a batch of samples, through the SDK.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from time import perf_counter

import tinker

from benchmarks.harness.aims import Value, divide, paired_ratio
from benchmarks.harness.context import Context
from benchmarks.harness.rounds import Metrics, Rows, Turn
from benchmarks.live.client import batch_of, new_run, sample_all, session, step
from benchmarks.live.models import Model
from benchmarks.live.server import LiveServer
from benchmarks.server.neighbour import ALONE, BESIDE, neighbours
from benchmarks.server.scale import MEDIUM, PROMPT_TOKENS, SMALL
from benchmarks.server.setup import Setup

ONE, CORES, CHOSEN = "1 thread", "a thread for each core", "default"
TRAINING, SAMPLING = "training, 4 × 64 tokens", "sampling, 4 × 32 tokens"
MODELS = {SMALL: "1M", MEDIUM: "10M"}
WORKLOADS = (TRAINING, SAMPLING)
SETTINGS = (ALONE, BESIDE)
RATE = "steps_per_second"
_SEQUENCES = 4
_TRAINED_TOKENS = 64
_SAMPLED_TOKENS = 32


def row(model: str, workload: str, setting: str, threads: str) -> str:
    return f"{MODELS[model]}, {workload}, {setting}, {threads}"


def one_thread(name: str) -> str:
    """The row of the same work with one thread."""
    return f"{name.rpartition(', ')[0]}, {ONE}"


def against_better(model: str, workload: str, setting: str) -> Value:
    """The default against the better of one thread and a thread for each core, round by round."""

    def value(rows: Rows) -> float | None:
        chosen = row(model, workload, setting, CHOSEN)
        ratios = [paired_ratio(RATE, chosen, row(model, workload, setting, other))(rows) for other in (ONE, CORES)]
        known = [each for each in ratios if each is not None]
        return min(known) if len(known) == len(ratios) else None

    return value


def measure_threads(context: Context, setup: Setup) -> Rows:
    context.describe(f"{' and '.join(setup.models[name].title for name in MODELS)} models, {context.threads} cores")
    rows: Rows = {}
    with ExitStack() as stack:
        turns: dict[str, Turn] = {}
        for name in MODELS:  # a server for each model, because the default depends on the models
            for label, threads in ((ONE, 1), (CORES, context.threads), (CHOSEN, 0)):
                home = context.directory / f"threads-{name}-{threads}"
                server = stack.enter_context(LiveServer([setup.models[name]], home, threads=threads))
                service = stack.enter_context(session(server.url))
                for workload, work in _works(service, setup.models[name]).items():
                    turns[row(name, workload, "{}", label)] = _repeating(setup, work)
        for setting in SETTINGS:
            with neighbours(are_pinned=False) if setting == BESIDE else ExitStack():
                for name in MODELS:
                    for workload in WORKLOADS:
                        chosen = {
                            key.format(setting): turn
                            for key, turn in turns.items()
                            if key.startswith(f"{MODELS[name]}, {workload}, ")
                        }
                        rows |= context.run_rounds(chosen, repeats=setup.scale.thread_rounds)
    return rows


def _works(service: tinker.ServiceClient, model: Model) -> dict[str, Callable[[], object]]:
    run = new_run(service, model.name)
    batch = batch_of(model.draw(_SEQUENCES, _TRAINED_TOKENS + 1, seed=7))
    sampler = service.create_sampling_client(base_model=model.name)
    prompts = model.draw(_SEQUENCES, PROMPT_TOKENS, seed=8)
    return {
        TRAINING: lambda: step(run, batch),
        SAMPLING: lambda: sample_all(sampler, prompts, samples=1, max_tokens=_SAMPLED_TOKENS),
    }


def _repeating(setup: Setup, work: Callable[[], object]) -> Turn:
    def turn() -> Metrics:
        count, started = 0, perf_counter()
        while (seconds := perf_counter() - started) < setup.scale.neighbour_seconds:
            work()
            count += 1
        rate = divide(count, seconds)
        return {} if rate is None else {RATE: rate, "seconds": 1 / rate}

    return turn
