"""Sharing: the tokens per second of several LoRA runs at once, in sum, beside those of one alone."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from time import perf_counter

from benchmarks.harness.context import Context
from benchmarks.harness.rounds import Metrics, Rows, Turn
from benchmarks.live.client import RANK, batch_of, new_run, session, step
from benchmarks.server.scale import CONCURRENT_RUNS, LARGE
from benchmarks.server.setup import Setup

ONE = "one run"
MANY = f"{CONCURRENT_RUNS} runs at once"


def measure_sharing(context: Context, setup: Setup) -> Rows:
    """The lone run takes as many steps as all of them together, so both have the same work."""
    model, scale = setup.models[LARGE], setup.scale
    sequences_each = max(1, scale.batch_sequences // 2)
    length = scale.sequence_tokens
    batch = f"{CONCURRENT_RUNS} runs of {sequences_each} × {length} tokens a step"
    context.describe(f"{model.title} model, rank {RANK}, {batch}")
    batches = [batch_of(model.draw(sequences_each, length + 1, seed=10 + number)) for number in range(CONCURRENT_RUNS)]
    with session(setup.server.url) as service, ThreadPoolExecutor(CONCURRENT_RUNS) as clients:
        runs = [new_run(service, model.name, seed=number) for number in range(CONCURRENT_RUNS)]

        def training(count: int) -> Turn:
            steps_each = scale.steps_per_turn * CONCURRENT_RUNS // count

            def train(number: int) -> None:
                for _ in range(steps_each):
                    step(runs[number], batches[number])

            def turn() -> Metrics:
                started = perf_counter()
                list(clients.map(train, range(count)))
                seconds = perf_counter() - started
                return {"tokens_per_second": count * steps_each * sequences_each * length / seconds}

            return turn

        return context.run_rounds({ONE: training(1), MANY: training(CONCURRENT_RUNS)}, repeats=scale.sharing_rounds)
