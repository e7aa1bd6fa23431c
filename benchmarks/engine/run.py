"""The engine benchmark: ``python benchmarks/engine/run.py --help``."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

if __package__ in (None, ""):  # the repository goes on the path, and this directory comes off it
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from benchmarks.engine import loading
from benchmarks.harness.aims import Counts, at_least, median
from benchmarks.harness.benchmark import Benchmark
from benchmarks.harness.command import Help
from benchmarks.harness.context import Context
from benchmarks.harness.measure import Column, Measure
from benchmarks.harness.plot import Bars
from benchmarks.harness.units import count, duration, megabytes_per_second

RATE = "operations_per_second"
PLANNED = 70.0  # operations of training per second of 1,000 runs that make a step every 30 s: 2 of 33 steps

STEPS = Measure(
    "steps",
    "Operations of training, with workers that need no time",
    loading.measure_steps,
    columns=(
        Column(RATE, "per second", count, spread=True),
        Column("cpu_seconds", "CPU of each", duration),
        Column("journal_bytes_per_second", "journal", megabytes_per_second),
    ),
    ours=(loading.MANY,),
    panel=Bars(RATE),
    aims=(
        at_least("operations per second, 1,000 runs and 100 replicas", median(loading.MANY, RATE), 1000.0, count),
        at_least("the same with a synced journal", median(loading.SYNCED, RATE), 2 * PLANNED, count),
        at_least("the same with 16,384 tokens a pass", median(loading.LARGE, RATE), 2 * PLANNED, count),
    ),
    counts=Counts.FULL,
)

ROWS = Measure(
    "rows",
    "New runs, samplers, moves and samples, with workers that need no time",
    loading.measure_rows,
    columns=(Column(RATE, "per second", count, spread=True), Column("cpu_seconds", "CPU of each", duration)),
    ours=(loading.SAMPLERS,),
    panel=Bars(RATE),
    aims=(
        at_least("samplers per second", median(loading.SAMPLERS, RATE), PLANNED, count),
        at_least("samples per second", median(loading.SAMPLES, RATE), 1000.0, count),
    ),
    counts=Counts.FULL,
)


@contextmanager
def set_up(_: Context) -> Iterator[None]:
    yield None


BENCHMARK = Benchmark(
    folder=Path(__file__).resolve().parent,
    title="Engine, with workers that need no time",
    help=Help(
        about="What the engine can take: real engine, journal, catalog and store, with workers that compute nothing.",
        quick="some seconds: 100 runs and 10 replicas",
        disk="2 GB",
        epilog="With --quick, figures are printed with a ~ and fail the run only if they could not be measured at all.",
    ),
    measures=(STEPS, ROWS),
    set_up=set_up,
    packages=("chockstone", "sqlalchemy"),
    has_servers=False,
)

if __name__ == "__main__":
    sys.exit(BENCHMARK.main())
