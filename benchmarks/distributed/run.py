"""The benchmark of many ranks: ``python benchmarks/distributed/run.py --help``."""

from __future__ import annotations

import sys
from pathlib import Path

if __package__ in (None, ""):  # the repository goes on the path, and this directory comes off it
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from benchmarks.distributed import archiving, stepping
from benchmarks.distributed.scale import set_up
from benchmarks.harness.aims import Counts, at_least, at_most, ratio
from benchmarks.harness.benchmark import Benchmark
from benchmarks.harness.command import Help
from benchmarks.harness.measure import Column, Measure, against
from benchmarks.harness.plot import Bars
from benchmarks.harness.units import duration, times

EPILOG = """\
With --quick the state is smaller and rounds are few: figures are printed with a ~ and fail the run only if they could
not be measured at all.
"""

TO_TWO = (against("ours, two ranks", archiving.TWO),)
ARCHIVING_AIMS = (
    at_most("two ranks against one, the same bytes", ratio("seconds", archiving.TWO, archiving.ONE), 1.1, times),
    at_least("torch DCP against ours, two ranks each", ratio("seconds", archiving.DCP, archiving.TWO), 3.0, times),
)

SAVE = Measure(
    "save",
    "Saving until durable",
    archiving.measure_saving,
    columns=(
        Column("seconds", "until durable", duration, spread=True, against=TO_TWO),
        Column("blocked", "training was blocked for", duration),
    ),
    ours=archiving.OURS,
    panel=Bars("seconds"),
    counts=Counts.FULL,
    aims=(
        *ARCHIVING_AIMS,
        at_most(
            "blocked per rank, two ranks against one alike",
            ratio("blocked", archiving.TWO, archiving.ALIKE),
            0.5,
            times,
        ),
    ),
)

LOAD = Measure(
    "load",
    "Loading from disk",
    archiving.measure_loading,
    columns=(Column("seconds", "until restored", duration, spread=True, against=TO_TWO),),
    ours=archiving.OURS,
    panel=Bars("seconds"),
    counts=Counts.FULL,
    aims=ARCHIVING_AIMS,
)

STEP = Measure(
    "step",
    "Full fine-tuning",
    stepping.measure_stepping,
    columns=(Column("seconds", "a step", duration, spread=True, against=(against("bare loop", stepping.BARE),)),),
    ours=(stepping.OURS, stepping.OWN),
    panel=Bars("seconds"),
    counts=Counts.FULL,
    aims=[
        at_most(title, ratio("seconds", stepping.OURS, row), 1.05, times)
        for title, row in {
            "a step against the same arithmetic in a bare loop": stepping.OWN,
            "a step against a bare FSDP2 loop": stepping.BARE,
        }.items()
    ],
)

BENCHMARK = Benchmark(
    folder=Path(__file__).resolve().parent,
    title="Many ranks",
    help=Help(
        about="One archive saved and loaded by several ranks, and what keeping ranks in step costs.",
        quick="less than a minute: a small state, few rounds",
        disk="8 GB",
        epilog=EPILOG,
    ),
    measures=(SAVE, LOAD, STEP),
    set_up=set_up,
    packages=("chockstone", "torch"),
    has_servers=False,
    controls_memory=True,
)

if __name__ == "__main__":
    sys.exit(BENCHMARK.main())
