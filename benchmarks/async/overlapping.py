"""Overlapping: the same training, synchronous and with generation one step ahead of training."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path

from benchmarks.harness.context import Context
from benchmarks.harness.rounds import Metrics, Rows, Series
from benchmarks.live.server import KEY
from chockstone.trainers import Completion, Environment, Problem, StepRecord, Trainer, TrainerConfig, load_environment

from .scale import SLOW_REWARD_SECONDS
from .setup import Setup

TASK = "arithmetic"
FAST, SLOW = "reward at once", f"reward after {SLOW_REWARD_SECONDS:.0f} s"
STALENESS = {"synchronous": 0, "one step off": 1}


def measure_overlapping(context: Context, setup: Setup) -> Rows:
    context.describe(f"{TASK}, {setup.model.title} model, generation and training in one worker process")
    numbers = count()
    arithmetic = load_environment(TASK)
    environments: dict[str, Environment] = {FAST: arithmetic, SLOW: SlowReward(arithmetic)}

    def training(environment: Environment, staleness: int) -> Metrics:
        return asyncio.run(_train(setup, environment, staleness, context.directory / f"run-{next(numbers)}"))

    training(arithmetic, 0)  # uncounted: the worker has all it needs now
    rows = {row_of(kind, way): Series() for kind in environments for way in STALENESS}
    for number in range(setup.scale.trainings):
        for kind, environment in environments.items():
            for way, staleness in STALENESS.items():
                context.say(f"round {number + 1} of {setup.scale.trainings}: {row_of(kind, way)}")
                rows[row_of(kind, way)].add(training(environment, staleness))
    return rows


def row_of(kind: str, way: str) -> str:
    return f"{kind}: {way}"


class SlowReward:
    """Wraps an environment so that its rewards take a while, as those of tools, executed code or a judge."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self.name = f"slow-{environment.name}"
        self.stop = environment.stop

    def __len__(self) -> int:
        return len(self._environment)

    def problem(self, index: int) -> Problem:
        return self._environment.problem(index)

    async def reward(self, problem: Problem, completion: Completion) -> float:
        await asyncio.sleep(SLOW_REWARD_SECONDS)
        reward = self._environment.reward(problem, completion)
        return reward if isinstance(reward, float | int) else await reward

    def evaluation(self) -> Sequence[Problem]:
        return self._environment.evaluation()


class _Stopwatch:
    """A report that notes when each step was over."""

    def __init__(self) -> None:
        self.moments: list[float] = []
        self.staleness: list[float] = []

    def record(self, record: StepRecord) -> None:
        self.moments.append(time.perf_counter())
        self.staleness.append(record.metrics["staleness/mean"])

    def resume(self, step: int) -> None:
        pass

    def evaluated(self, step: int, metrics: Mapping[str, float]) -> None:
        pass

    def event(self, text: str, *, level: str = "info") -> None:
        pass

    def close(self) -> None:
        pass


async def _train(setup: Setup, environment: Environment, staleness: int, store: Path) -> Metrics:
    """From the end of the first step to that of the last."""
    watch = _Stopwatch()
    config = TrainerConfig(
        setup.model.name,
        steps=setup.scale.steps + 1,
        batch_size=8,
        group_size=8,
        max_tokens=16,
        staleness=staleness,
        save_every=0,
    )
    await Trainer(config, environment, store=store, reports=[watch], base_url=setup.server.url, api_key=KEY).run()
    seconds = (watch.moments[-1] - watch.moments[0]) / (len(watch.moments) - 1)
    return {"seconds": seconds, "staleness": sum(watch.staleness[1:]) / len(watch.staleness[1:])}
