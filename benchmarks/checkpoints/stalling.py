"""Stalling: how long ``save()`` keeps the caller, and when what it started is durable."""

from __future__ import annotations

from time import perf_counter

import torch

from benchmarks.checkpoints.contestant import Contestant, Start
from benchmarks.checkpoints.durability import remove
from benchmarks.checkpoints.rounds import Action, Metrics, Series, run_rounds
from benchmarks.checkpoints.stage import Stage
from benchmarks.checkpoints.states import State

LIMIT = "limit: warm memcpy"


def measure_stalling(stage: Stage) -> dict[str, Series]:
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
    actions |= {
        contestant.name: stalling(contestant.start) for contestant in stage.contestants if contestant.start is not None
    }
    return stage.with_absent(run_rounds(actions, repeats=stage.repeats, memory=stage.memory, say=stage.say))


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
