"""The recovery benchmark: ``python benchmarks/recovery/run.py --help``."""

from __future__ import annotations

import sys
from pathlib import Path

if __package__ in (None, ""):  # the repository goes on the path, and this directory comes off it
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from benchmarks.harness.aims import Counts, at_most, median
from benchmarks.harness.benchmark import Benchmark
from benchmarks.harness.command import Help
from benchmarks.harness.measure import Column, Measure
from benchmarks.harness.plot import Bars
from benchmarks.harness.rounds import Rows
from benchmarks.harness.units import (
    duration,
    megabytes,
    percent,
    precise_seconds,
    seconds,
    signed_percent,
    times,
    whole_megabytes,
)
from benchmarks.recovery import journalling, parking, recovering
from benchmarks.recovery.setup import set_up

NOISE = 0.05  # of a replay against the steps it repeats, measured minutes apart
UNMEASURABLE = 0.01

EPILOG = """\
With --quick, turns are short, the recovered model is small and few runs are parked: those figures are printed with
a ~ and fail the run only if they could not be measured at all. The 100M model's steps are left out.
"""


def noise_of_two_servers(rows: Rows) -> float:
    """What two servers that do the same differ by, and at least one part in a hundred."""
    return max(UNMEASURABLE, abs(median(journalling.AGAIN, "share")(rows) or 0.0))


def more_memory(rows: Rows) -> float | None:
    full, empty = (median(row, "memory")(rows) for row in (parking.FULL, parking.EMPTY))
    return None if full is None or empty is None else full - empty


STEP_COLUMNS = (
    Column("seconds", "a step", duration),
    Column("added", "added to it", duration),
    Column("share", "of it", signed_percent, spread=True),
    Column("cpu", "API process, CPU", duration),
)
JOURNALLED = (journalling.ALONE, journalling.SYNCED, journalling.ARCHIVED)

JOURNAL = Measure(
    "journal",
    "What a step costs",
    journalling.measure_journalling,
    columns=STEP_COLUMNS,
    ours=JOURNALLED,
    panel=Bars("added"),
    aims=(  # too noisy in the short turns of a quick run to decide anything
        at_most("journalling, of a step of a 1M model", median(journalling.ALONE, "share"), 0.03, percent),
        at_most("recovery archives, of a journalled step", median(journalling.ARCHIVED, "share"), 0.03, percent),
    ),
    counts=Counts.FULL,
)

JOURNAL_LARGE = Measure(
    "journal-large",
    "What a step of a larger model costs",
    journalling.measure_large_journalling,
    columns=STEP_COLUMNS,
    ours=JOURNALLED,
    panel=Bars("added"),
    aims=(
        at_most(
            "journalling, of a step of a 100M model", median(journalling.ALONE, "share"), noise_of_two_servers, percent
        ),
        at_most("recovery archives, of a journalled step", median(journalling.ARCHIVED, "share"), 0.03, percent),
    ),
    is_in_quick_runs=False,  # it says nothing on a small model
)

RECOVERY = Measure(
    "recovery",
    "Recovery, from the start of the server until the run answers",
    recovering.measure_recovery,
    columns=(
        Column("seconds", "all of it", precise_seconds, spread=True),
        Column("answers", "API answers", precise_seconds),
        Column("replay", "replay", precise_seconds),
        Column("besides", "besides that", precise_seconds),
        Column("memory", "memory", megabytes),
    ),
    ours=(recovering.OURS, recovering.WORKER),
    panel=Bars("seconds"),
    aims=(
        at_most("from start until the API answers", median(recovering.OURS, "answers"), 5.0, seconds),
        at_most(
            "until the run answers, besides its replay",
            median(recovering.OURS, "besides"),
            5.0,
            seconds,
            counts=Counts.FULL,
        ),
        at_most(
            "the same after a crash of the worker",
            median(recovering.WORKER, "besides"),
            5.0,
            seconds,
            counts=Counts.FULL,
        ),
        at_most(
            "replay against the original steps",
            median(recovering.OURS, "against_original"),
            1 + NOISE,
            times,
            counts=Counts.FULL,
        ),
    ),
)

PARKED = Measure(
    "parked",
    "Parked runs, from the start of the server",
    parking.measure_parking,
    columns=(
        Column("answers", "API answers", precise_seconds, spread=True),
        Column("memory", "memory", megabytes, spread=True),
        Column("woken", "a parked run answers", precise_seconds),
    ),
    ours=(parking.FULL,),
    panel=Bars("memory"),
    aims=(
        at_most("from start until the API answers", median(parking.FULL, "answers"), 5.0, seconds),
        at_most("resident memory more than with none", more_memory, 200e6, whole_megabytes),
    ),
    counts=Counts.FULL,
)

BENCHMARK = Benchmark(
    folder=Path(__file__).resolve().parent,
    title="Crashes that go unnoticed",
    help=Help(
        about="What it costs that crashes go unnoticed, how long they last, and what idle runs take.",
        quick="less than a minute: a smaller model, fewer runs and repeats",
        disk="5 GB",
        epilog=EPILOG,
    ),
    measures=(JOURNAL, JOURNAL_LARGE, RECOVERY, PARKED),
    set_up=set_up,
    panels_per_row=2,
)

if __name__ == "__main__":
    sys.exit(BENCHMARK.main())
