"""Stalling: how long ``save()`` keeps the caller, and when what it started is durable."""

from __future__ import annotations

from time import perf_counter

import torch

from benchmarks.checkpoints.contestant import Contestant, Start
from benchmarks.checkpoints.setup import TOO_SLOW, Prepared, Setup
from benchmarks.checkpoints.states import State
from benchmarks.harness.context import Context
from benchmarks.harness.disk import remove
from benchmarks.harness.rounds import Metrics, Rows, Series, Turn

LIMIT = "limit: warm memcpy"


def measure_stalling(context: Context, setup: Setup, *, state: str) -> Rows:
    prepared = setup.prepare(context, state)
    background = {one.name: one for one in prepared.contestants if one.start is not None}
    left_out = {name for name, one in background.items() if one.slow} if context.quick else set()

    def stalling(start: Start) -> Turn:
        def turn() -> Metrics:
            started = perf_counter()
            wait = start(prepared.state)
            stall = perf_counter() - started
            path = wait()
            durable = perf_counter() - started
            remove(path)
            return {"seconds": stall, "durable": durable}

        return turn

    def copying() -> Metrics:
        started = perf_counter()
        prepared.limits.copy()
        return {"seconds": perf_counter() - started}

    turns: dict[str, Turn] = {LIMIT: copying}
    for name, contestant in background.items():
        if contestant.start is not None and name not in left_out:
            turns[name] = stalling(contestant.start)
    rows = context.run_rounds(turns, repeats=prepared.repeats, memory=prepared.memory)
    rows |= {name: Series(failure=TOO_SLOW) for name in left_out}
    if state == "L":
        _note_leaks(context, prepared, rows)
    return prepared.with_absent(rows)


def _note_leaks(context: Context, prepared: Prepared, rows: Rows) -> None:
    """A save that lets later changes through blocks for less time because it does not do the job."""
    for contestant in prepared.contestants[:1] if context.quick else prepared.contestants:
        series = rows.get(contestant.name)
        if series is None or series.failure is not None:
            continue
        context.say(f"does a later change leak into the save? {contestant.name}")
        if leaks_later_changes(contestant, prepared.state, prepared.target):
            series.failure = "no snapshot: a change made after save() returned reached the checkpoint"


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
