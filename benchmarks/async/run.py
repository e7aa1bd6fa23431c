"""The async benchmark: ``python benchmarks/async/run.py --help``."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

if not __package__:  # the repository goes on the path, and this directory comes off it
    sys.path[0] = str(Path(__file__).resolve().parents[2])
    __package__ = "benchmarks.async"  # for relative imports: ``async`` is a keyword

from benchmarks.harness.aims import Aim, Counts, at_least, at_most, largest, median, ratio
from benchmarks.harness.benchmark import Benchmark
from benchmarks.harness.command import Help
from benchmarks.harness.measure import Column, Measure
from benchmarks.harness.plot import Bars
from benchmarks.harness.rounds import Rows
from benchmarks.harness.units import count, duration, milliseconds, percent, times

from . import generating, overlapping, plot, savers, stalling, timeline
from .scale import F, L
from .setup import Setup, set_up

SHARE = 0.95
P99_SECONDS, MAX_SECONDS = 0.010, 0.050

EPILOG = """\
With --quick, F is a stand-in of 93 MB, windows are short and repeats few: figures are printed with a ~ and fail the
run only if they could not be measured at all.
"""


def difference_without_saves(rows: Rows) -> float | None:
    share = median(generating.NOTHING, "share")(rows)
    return None if share is None else abs(1 - share)


def tokens(state: str) -> Measure[Setup]:
    """Too noisy in the short windows of a quick run; and on a busy machine, which the second figure finds out."""
    return Measure(
        f"tokens-{state}",
        f"Generating while an {state}-like state is saved",
        partial(generating.measure_generating, name=state),
        columns=(
            Column("share", "tokens/s, of those without", percent, spread=True),
            Column("during", "during saves", count),
            Column("outside", "without", count),
            Column("seconds", "a save takes", duration),
            Column("cpu", "CPU of it", duration),
            Column("lost", "generation lost", duration),
        ),
        ours=(savers.OURS, savers.FAST),
        panel=Bars("share"),
        aims=(
            at_least("tokens/s during saves, of those without", median(savers.OURS, "share"), SHARE, percent),
            at_most("two windows without a save differ by", difference_without_saves, 1 - SHARE, percent),
        ),
        counts=Counts.FULL,
    )


WATCHED_ROWS = [
    stalling.row_of(state, action) for state in (L, F) for action in (stalling.SAVE, stalling.EXPORT, stalling.LOAD)
]
LATENESS_COLUMNS = (
    Column("p99", "p99 of lateness", duration, spread=True),
    Column("max", "latest beat", duration, spread=True),
    Column("elsewhere", "of a bystander", duration, spread=True),
    Column("held", "longest callback", duration),
    Column("seconds", "each takes", duration),
)


def bystander(rows: Rows) -> float | None:
    """How late a process woke that only sleeps: what the machine did to another program in the same windows."""
    latest = [late for row in WATCHED_ROWS if (late := largest(row, "elsewhere")(rows)) is not None]
    return max(latest, default=None)


def lateness_aims(whose: str) -> list[Aim]:
    """The p99 of the median round, and the one latest beat of all rounds."""
    aims: list[Aim] = []
    for row in WATCHED_ROWS:
        p99, latest = median(row, "p99"), largest(row, "max")
        title = f"{whose} loop, {row}"
        aims += [
            at_most(f"{title}: p99 of lateness", p99, P99_SECONDS, milliseconds, counts=Counts.FULL),
            at_most(f"{title}: latest beat", latest, MAX_SECONDS, milliseconds, counts=Counts.FULL),
        ]
    title = "a bystander that only sleeps: latest time it woke"
    return [*aims, at_most(title, bystander, MAX_SECONDS, milliseconds, counts=Counts.NEVER)]


TIMELINE = Measure(
    "timeline",
    "Generating around one save",
    timeline.measure_timeline,
    columns=(
        Column("tokens_per_second", "tokens/s", count, spread=True),
        Column("seconds", "the save takes", duration),
    ),
    aims=(at_least("timelines, of two states saved four ways", lambda rows: len(rows) or None, 8, count),),
)

TRAINER_LOOP = Measure(
    "trainer-loop",
    "Lateness of the trainer's event loop",
    stalling.measure_trainer,
    columns=LATENESS_COLUMNS,
    ours=WATCHED_ROWS,
    panel=Bars("p99"),
    aims=lateness_aims("trainer's"),
)

SERVER_LOOP = Measure(
    "server-loop",
    "Lateness of the server's event loop",
    stalling.measure_server,
    columns=[column for column in LATENESS_COLUMNS if column.metric != "held"],
    ours=WATCHED_ROWS,
    panel=Bars("p99"),
    aims=lateness_aims("server's"),
)

SYNCHRONOUS, ONE_STEP_OFF = overlapping.STALENESS
REWARDS = (overlapping.FAST, overlapping.SLOW)

ONE_STEP_OFF_TRAINING = Measure(
    "one-step-off",
    "Training",
    overlapping.measure_overlapping,
    columns=(Column("seconds", "a step", duration, spread=True), Column("staleness", "staleness", "{:.2f}".format)),
    ours=[overlapping.row_of(reward, ONE_STEP_OFF) for reward in REWARDS],
    panel=Bars("seconds"),
    aims=[  # only shown: what there is to gain depends on the task
        at_most(
            f"one step off against synchronous, {reward}: wall clock",
            ratio("seconds", overlapping.row_of(reward, ONE_STEP_OFF), overlapping.row_of(reward, SYNCHRONOUS)),
            1.0,
            times,
            counts=Counts.NEVER,
        )
        for reward in REWARDS
    ],
)

BENCHMARK = Benchmark(
    folder=Path(__file__).resolve().parent,
    title=plot.TITLE,
    help=Help(
        about="What saving costs a program that must not stop, and what overlapping gains.",
        quick="about a minute: smaller states, shorter windows, fewer repeats",
        disk="12 GB",
        epilog=EPILOG,
    ),
    measures=(tokens(L), tokens(F), TIMELINE, TRAINER_LOOP, SERVER_LOOP, ONE_STEP_OFF_TRAINING),
    set_up=set_up,
    draw=plot.draw,
)

if __name__ == "__main__":
    sys.exit(BENCHMARK.main())
