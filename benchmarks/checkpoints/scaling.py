"""Scaling: what a durable save and a cold verified restore cost as states grow larger or more numerous.

Linear means that the cost grows no faster than the size or the count. The measure of it is the growth
exponent between two points, log(time ratio) / log(size ratio): 1.0 is a straight line, less is a fixed cost
being spread, more is worse than linear.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Literal

from benchmarks.checkpoints import ours, states
from benchmarks.checkpoints.durability import evict, remove
from benchmarks.checkpoints.free_memory import Temperature, free_memory
from benchmarks.checkpoints.rounds import Metrics, Series, run_rounds

Axis = Literal["size", "count"]

SIZES_BYTES = (10_000_000, 30_000_000, 100_000_000, 300_000_000, 1_000_000_000, 4_000_000_000)
QUICK_SIZES_BYTES = (10_000_000, 100_000_000, 300_000_000)
COUNTS = (10, 100, 1_000, 5_000, 20_000)
QUICK_COUNTS = (10, 1_000, 20_000)
TENSORS_OF_SIZES = 100
BYTES_OF_COUNTS = 100_000_000
SCALING_MEMORY_BYTES = 100_000_000  # ours needs no fresh memory per save, whatever the size


@dataclass(frozen=True, slots=True)
class Point:
    axis: Axis
    at: int  # bytes, or number of tensors
    series: Series


def measure_scaling(
    directory: Path, *, repeats: int, temperature: Temperature, quick: bool, say: Callable[[str], None]
) -> list[Point]:
    wanted: list[tuple[Axis, int]] = [("size", size) for size in (QUICK_SIZES_BYTES if quick else SIZES_BYTES)]
    wanted += [("count", tensor_count) for tensor_count in (QUICK_COUNTS if quick else COUNTS)]
    return [Point(axis, at, _measure(axis, at, directory, repeats, temperature, say)) for axis, at in wanted]


def growth_exponent(points: list[Point], axis: Axis, metric: str) -> float | None:
    """The exponent from the middle point of an axis to its largest."""
    along = sorted((point for point in points if point.axis == axis), key=lambda point: point.at)
    timed = [(point.at, seconds) for point in along if (seconds := point.series.median(metric)) is not None]
    if len(timed) < 2:
        return None
    (middle, before), (largest, after) = timed[(len(timed) - 1) // 2], timed[-1]
    return math.log(after / before) / math.log(largest / middle)


def _measure(
    axis: Axis, at: int, directory: Path, repeats: int, temperature: Temperature, say: Callable[[str], None]
) -> Series:
    size_bytes, tensor_count = (at, TENSORS_OF_SIZES) if axis == "size" else (BYTES_OF_COUNTS, at)
    state = states.of_size(size_bytes, tensor_count)
    scratch = directory / f"scaling-{axis}-{at}"
    scratch.mkdir()
    try:
        contestant = ours.contestant(scratch)
    except ImportError as error:
        return Series(failure=f"ImportError: {error}")
    save, restore = contestant.save, contestant.restore
    assert save is not None
    assert restore is not None

    def action() -> Metrics:
        started = perf_counter()
        path = save(state)
        saved = perf_counter()
        evict(path)
        restoring = perf_counter()
        restore(path, state)
        restored = perf_counter()
        remove(path)
        return {"save": saved - started, "restore": restored - restoring}

    try:
        return run_rounds(
            {ours.NAME: action},
            repeats=repeats,
            memory=free_memory(temperature, SCALING_MEMORY_BYTES),
            say=lambda line: say(f"{state.title}, {line}"),
        )[ours.NAME]
    finally:
        contestant.close()
        remove(scratch)
