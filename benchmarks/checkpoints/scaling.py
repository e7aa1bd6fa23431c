"""Scaling: what a durable save and a cold verified restore cost as states grow larger or have more tensors.

Linear means that the cost grows no faster than the size or the count. The measure of it is the growth
exponent between two points, log(time ratio) / log(size ratio): 1.0 is a straight line, less is a fixed cost
being spread, more is worse than linear.
"""

from __future__ import annotations

import math
from time import perf_counter
from typing import Literal

from benchmarks.checkpoints import ours, states
from benchmarks.checkpoints.setup import Setup
from benchmarks.checkpoints.states import State
from benchmarks.harness.aims import Value
from benchmarks.harness.context import Context
from benchmarks.harness.disk import evict, remove
from benchmarks.harness.free_memory import free_memory
from benchmarks.harness.rounds import Metrics, Rows, Series, run_rounds

Axis = Literal["size", "count"]

SIZES_BYTES = (10_000_000, 30_000_000, 100_000_000, 300_000_000, 1_000_000_000, 4_000_000_000)
QUICK_SIZES_BYTES = (10_000_000, 100_000_000, 300_000_000)
COUNTS = (10, 100, 1_000, 5_000, 20_000)
QUICK_COUNTS = (10, 1_000, 20_000)
TENSORS_OF_SIZES = 100
BYTES_OF_COUNTS = 100_000_000
REPEATS, QUICK_REPEATS = 5, 2
SCALING_MEMORY_BYTES = 100_000_000  # ours needs no fresh memory per save, whatever the size


def measure_scaling(context: Context, setup: Setup, *, axis: Axis) -> Rows:
    """A row for each state, whose place on the axis is its metric ``at``: bytes, or the number of tensors."""
    setup.close()
    rows: Rows = {}
    if axis == "size":
        context.describe(f"{ours.NAME}, {TENSORS_OF_SIZES} tensors")
        for size_bytes in QUICK_SIZES_BYTES if context.quick else SIZES_BYTES:
            state = states.of_size(size_bytes, TENSORS_OF_SIZES)
            rows[f"{size_bytes / 1e6:,.0f} MB"] = _measure(context, state, at=size_bytes)
    else:
        context.describe(f"{ours.NAME}, {BYTES_OF_COUNTS / 1e6:.0f} MB")
        for count in QUICK_COUNTS if context.quick else COUNTS:
            state = states.of_size(BYTES_OF_COUNTS, count)
            rows[f"{count:,} tensors in {BYTES_OF_COUNTS / 1e6:.0f} MB"] = _measure(context, state, at=count)
    return rows


def growth_exponent(metric: str) -> Value:
    """The exponent from the middle point of a curve to its largest."""

    def value(rows: Rows) -> float | None:
        points = sorted(
            (at, seconds)
            for series in rows.values()
            if (at := series.median("at")) is not None and (seconds := series.median(metric)) is not None
        )
        if len(points) < 2:
            return None
        (middle, before), (largest, after) = points[(len(points) - 1) // 2], points[-1]
        return math.log(after / before) / math.log(largest / middle)

    return value


def _measure(context: Context, state: State, *, at: int) -> Series:
    scratch = context.directory / str(at)
    scratch.mkdir()
    try:
        contestant = ours.contestant(scratch)
    except ImportError as error:
        return Series(failure=f"ImportError: {error}")
    save, restore = contestant.save, contestant.restore
    assert save is not None
    assert restore is not None
    megabytes = state.size_bytes / 1e6

    def turn() -> Metrics:
        started = perf_counter()
        path = save(state)
        saved = perf_counter() - started
        evict(path)
        started = perf_counter()
        restore(path, state)
        restored = perf_counter() - started
        remove(path)
        return {
            "save": saved,
            "save_per_mb": saved / megabytes,
            "restore": restored,
            "restore_per_mb": restored / megabytes,
            "at": at,
        }

    try:
        return run_rounds(
            {ours.NAME: turn},
            repeats=QUICK_REPEATS if context.quick else REPEATS,
            memory=free_memory(context.temperature, SCALING_MEMORY_BYTES),
            say=lambda line: context.say(f"{state.title}, {line}"),
        )[ours.NAME]
    finally:
        contestant.close()
        remove(scratch)
