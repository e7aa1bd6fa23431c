"""The observability benchmark: ``python benchmarks/observability/run.py --help``."""

from __future__ import annotations

import sys
from pathlib import Path

if __package__ in (None, ""):  # the repository goes on the path, and this directory comes off it
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from benchmarks.harness.aims import Counts, Value, at_most, largest, median
from benchmarks.harness.benchmark import Benchmark
from benchmarks.harness.command import Help
from benchmarks.harness.measure import Column, Measure
from benchmarks.harness.plot import Bars
from benchmarks.harness.rounds import Rows
from benchmarks.harness.units import count, duration, percent, signed_percent
from benchmarks.observability import costing, streaming, viewing
from benchmarks.observability.scale import FULL
from benchmarks.observability.setup import set_up
from benchmarks.observability.switched_server import HISTORY, METRICS, TRACING

BOUNDS = {HISTORY: 0.01, METRICS: 0.01, TRACING: 0.01, costing.ALL: 0.02}  # of a step
MANY = streaming.many(FULL.pages)

EPILOG = """\
With --quick, turns are short and the server has fewer runs and checkpoints: those figures are printed with a ~ and
fail the run only if they could not be measured at all.
"""


def noise_or(bound: float) -> Value:
    """What two turns that do the same differ by, and at least ``bound``."""

    def value(rows: Rows) -> float:
        return max(bound, abs(median(costing.AGAIN, "share")(rows) or 0.0))

    return value


def more_cpu(row: str, base: str) -> Value:
    def value(rows: Rows) -> float | None:
        more, less = median(row, "cpu")(rows), median(base, "cpu")(rows)
        return None if more is None or less is None else more - less

    return value


COST = Measure(
    "cost",
    "What a training step costs",
    costing.measure_cost,
    columns=(
        Column("seconds", "a step", duration),
        Column("share", "more time", signed_percent, spread=True),
        Column("cpu", "CPU, API process", duration),
        Column("cpu_added", "more CPU", duration, spread=True),
        Column("cpu_share", "of a step", signed_percent),
        Column("calls", "calls", count),
    ),
    ours=(*BOUNDS, *(f"{name}, {costing.COUNTED}" for name in BOUNDS)),
    panel=Bars("cpu_added"),
    aims=(
        *(
            at_most(f"{name}: its own CPU time", median(f"{name}, {costing.COUNTED}", "cpu_share"), bound, percent)
            for name, bound in BOUNDS.items()
        ),
        *(
            at_most(f"{name}: CPU time of the process", median(name, "cpu_share"), bound, percent)
            for name, bound in BOUNDS.items()
        ),
        *(
            at_most(f"{name}: time of a step", median(name, "share"), noise_or(bound), percent)
            for name, bound in BOUNDS.items()
        ),
    ),
    counts=Counts.FULL,
)

PAINT = Measure(
    "paint",
    "First paint of the console",
    viewing.measure_paint,
    columns=(Column("seconds", "first paint", duration, spread=True),),
    ours=tuple(viewing.PAGES),
    panel=Bars("seconds"),
    aims=tuple(at_most(f"first paint, {name}", median(name, "seconds"), 0.3, duration) for name in viewing.PAGES),
    counts=Counts.FULL,
)

API = Measure(
    "api",
    "Answers of the API",
    viewing.measure_api,
    columns=(Column("median", "median", duration), Column("p99", "99th percentile", duration, spread=True)),
    ours=tuple(viewing.ROUTES),
    panel=Bars("p99"),
    aims=tuple(at_most(f"p99, {name}", median(name, "p99"), 0.1, duration) for name in viewing.ROUTES),
    counts=Counts.FULL,
)

STREAMS = Measure(
    "streams",
    "Open pages",
    streaming.measure_streams,
    columns=(
        Column("cpu", "CPU, API process", percent, spread=True),
        Column("healthz_p99", "healthz, 99th percentile", duration, spread=True),
    ),
    ours=(streaming.ONE, MANY),
    panel=Bars("cpu"),
    aims=(
        at_most("CPU of one idle page", more_cpu(streaming.ONE, streaming.NONE), 0.01, percent),
        at_most(f"healthz p99 with {FULL.pages} idle pages", largest(MANY, "healthz_p99"), 0.05, duration),
    ),
    counts=Counts.FULL,
)

BENCHMARK = Benchmark(
    folder=Path(__file__).resolve().parent,
    title="What it costs to see everything",
    help=Help(
        about="What step history, metrics, traces and open pages cost, and how fast the console is on a full server.",
        quick="less than a minute: short turns, fewer runs and checkpoints",
        disk="1 GB",
        epilog=EPILOG,
    ),
    measures=(COST, PAINT, API, STREAMS),
    set_up=set_up,
    panels_per_row=2,
)

if __name__ == "__main__":
    sys.exit(BENCHMARK.main())
