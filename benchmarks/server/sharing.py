"""Sharing: the tokens per second of several LoRA runs at once, in sum, beside those of one alone."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from time import perf_counter

from benchmarks.checkpoints.rounds import Action, Metrics, Series
from benchmarks.server.client import batch_of, new_run, session, step
from benchmarks.server.models import LARGE
from benchmarks.server.scale import CONCURRENT_RUNS
from benchmarks.server.stage import Stage

ONE = "one run"
MANY = f"{CONCURRENT_RUNS} runs at once"


def measure_sharing(stage: Stage) -> dict[str, Series]:
    """The lone run takes as many steps as all of them together, so both have the same work."""
    model, scale = stage.models[LARGE], stage.scale
    sequences_each = max(1, scale.batch_sequences // 2)
    length = scale.sequence_tokens
    batches = [batch_of(model.draw(sequences_each, length + 1, seed=10 + number)) for number in range(CONCURRENT_RUNS)]
    with session(stage.server.url) as service, ThreadPoolExecutor(CONCURRENT_RUNS) as clients:
        runs = [new_run(service, model.name, seed=number) for number in range(CONCURRENT_RUNS)]

        def training(count: int) -> Action:
            steps_each = scale.steps_per_turn * CONCURRENT_RUNS // count

            def train(number: int) -> None:
                for _ in range(steps_each):
                    step(runs[number], batches[number])

            def action() -> Metrics:
                started = perf_counter()
                list(clients.map(train, range(count)))
                seconds = perf_counter() - started
                return {"tokens_per_second": count * steps_each * sequences_each * length / seconds}

            return action

        return stage.run_rounds({ONE: training(1), MANY: training(CONCURRENT_RUNS)}, repeats=scale.sharing_rounds)
