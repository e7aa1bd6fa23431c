"""Saving: seconds from the call until the checkpoint is durable."""

from __future__ import annotations

from time import perf_counter

from benchmarks.checkpoints.contestant import FreshNames, Save
from benchmarks.checkpoints.limits import VARIANTS, Variant
from benchmarks.checkpoints.setup import TOO_SLOW, Prepared, Setup, keep_best, variant_name
from benchmarks.harness.context import Context
from benchmarks.harness.disk import remove
from benchmarks.harness.rounds import Metrics, Rows, Series, Turn, take_turn

LIMIT = "limit: O_DIRECT write + fsync"


def measure_saving(context: Context, setup: Setup, *, state: str) -> Rows:
    """Contestants that take a minute for F run once there, and never in a quick run; their rows say so."""
    prepared = setup.prepare(context, state)
    names = FreshNames(prepared.directory)

    def saving(save: Save) -> Turn:
        def turn() -> Metrics:
            started = perf_counter()
            path = save(prepared.state)
            seconds = perf_counter() - started
            remove(path)
            return {"seconds": seconds}

        return turn

    def writing(variant: Variant) -> Turn:
        def turn() -> Metrics:
            path = names.next("limit")
            started = perf_counter()
            prepared.limits.write(path, variant)
            seconds = perf_counter() - started
            remove(path)
            return {"seconds": seconds}

        return turn

    turns = {variant_name(LIMIT, variant): writing(variant) for variant in VARIANTS}
    once: dict[str, Turn] = {}
    for contestant in prepared.contestants:
        if contestant.save is not None and contestant.in_place:
            group = once if contestant.slow and (context.quick or state == "F") else turns
            group[contestant.name] = saving(contestant.save)

    rows = keep_best(context.run_rounds(turns, repeats=prepared.repeats, memory=prepared.memory), LIMIT)
    for name, turn in once.items():
        rows[name] = Series(failure=TOO_SLOW) if context.quick else _single(context, prepared, name, turn)
    return prepared.with_absent(rows)


def _single(context: Context, prepared: Prepared, name: str, turn: Turn) -> Series:
    context.say(f"once: {name}")
    single = Series(note="1 run")
    single.add(take_turn(turn, prepared.memory))
    return single
