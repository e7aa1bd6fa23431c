"""Saving: seconds from the call until the checkpoint is durable."""

from __future__ import annotations

from time import perf_counter
from typing import Literal

from benchmarks.checkpoints.contestant import FreshNames, Save
from benchmarks.checkpoints.durability import remove
from benchmarks.checkpoints.limits import VARIANTS, Variant
from benchmarks.checkpoints.rounds import Action, Metrics, Series, run_rounds, take_turn
from benchmarks.checkpoints.stage import TOO_SLOW, Stage, keep_best, variant_name

LIMIT = "limit: O_DIRECT write + fsync"


SlowTurns = Literal["every round", "once", "never"]


def measure_saving(stage: Stage, *, slow: SlowTurns) -> dict[str, Series]:
    """A slow contestant that does not take part in every round says so in its row."""
    names = FreshNames(stage.directory)

    def saving(save: Save) -> Action:
        def action() -> Metrics:
            started = perf_counter()
            path = save(stage.state)
            seconds = perf_counter() - started
            remove(path)
            return {"seconds": seconds}

        return action

    def writing(variant: Variant) -> Action:
        def action() -> Metrics:
            path = names.next("limit")
            started = perf_counter()
            stage.limits.write(path, variant)
            seconds = perf_counter() - started
            remove(path)
            return {"seconds": seconds}

        return action

    actions = {variant_name(LIMIT, variant): writing(variant) for variant in VARIANTS}
    once: dict[str, Action] = {}
    for contestant in stage.contestants:
        if contestant.save is not None and contestant.in_place:
            group = once if contestant.slow and slow != "every round" else actions
            group[contestant.name] = saving(contestant.save)

    series = keep_best(run_rounds(actions, repeats=stage.repeats, memory=stage.memory, say=stage.say), LIMIT)
    for name, action in once.items():
        series[name] = Series(failure=TOO_SLOW) if slow == "never" else _single(name, action, stage)
    return stage.with_absent(series)


def _single(name: str, action: Action, stage: Stage) -> Series:
    stage.say(f"once: {name}")
    single = Series(note="1 run")
    single.add(take_turn(action, stage.memory))
    return single
