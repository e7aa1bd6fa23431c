"""Stalling: how long ``save()`` keeps the caller, and when what it started is durable."""

from __future__ import annotations

from time import perf_counter

import torch

from benchmarks.checkpoints.contestant import Contestant, Start
from benchmarks.checkpoints.durability import remove
from benchmarks.checkpoints.rounds import Action, Metrics, Series, run_rounds
from benchmarks.checkpoints.stage import TOO_SLOW, Stage
from benchmarks.checkpoints.states import State

LIMIT = "limit: warm memcpy"


def measure_stalling(stage: Stage, *, with_slow: bool) -> dict[str, Series]:
    background = {one.name: one for one in stage.contestants if one.start is not None}
    left_out = set() if with_slow else {name for name, one in background.items() if one.slow}

    def stalling(start: Start) -> Action:
        def action() -> Metrics:
            started = perf_counter()
            wait = start(stage.state)
            stall = perf_counter() - started
            path = wait()
            durable = perf_counter() - started
            remove(path)
            return {"seconds": stall, "durable": durable}

        return action

    def copying() -> Metrics:
        started = perf_counter()
        stage.limits.copy()
        return {"seconds": perf_counter() - started}

    actions: dict[str, Action] = {LIMIT: copying}
    for name, contestant in background.items():
        if contestant.start is not None and name not in left_out:
            actions[name] = stalling(contestant.start)
    series = run_rounds(actions, repeats=stage.repeats, memory=stage.memory, say=stage.say)
    series |= {name: Series(failure=TOO_SLOW) for name in left_out}
    return stage.with_absent(series)


def leaks_later_changes(contestant: Contestant, state: State, target: State) -> bool:
    """Whether a change made right after ``save()`` returned reaches the checkpoint: then it took no snapshot.

    The state is as before on return.
    """
    if contestant.start is None or contestant.restore is None:
        raise ValueError(f"{contestant.name!r} cannot be checked: it must start a save and restore it")
    wait = contestant.start(state)
    _flip_lowest_bits(state)
    try:
        path = wait()
    finally:
        _flip_lowest_bits(state)
    contestant.restore(path, target)
    remove(path)
    return not target.equals(state)


def _flip_lowest_bits(state: State) -> None:
    for tensor in state.flat().values():
        tensor.view(torch.int32).bitwise_xor_(1)
