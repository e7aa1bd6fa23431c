"""The resume benchmark: ``python benchmarks/resume/run.py --help``."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

if __package__ in (None, ""):  # the repository goes on the path, and this directory comes off it
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from benchmarks.harness.aims import Counts, at_least, at_most, median, paired_ratio
from benchmarks.harness.benchmark import Benchmark
from benchmarks.harness.command import Help
from benchmarks.harness.measure import Column, Measure
from benchmarks.harness.plot import Bars
from benchmarks.harness.units import count, duration, percent, seconds, signed_percent, times
from benchmarks.resume import attempts, forwarding, saving, walking
from benchmarks.resume.setup import set_up

EPILOG = """\
With --quick there are fewer rounds: shares of a save are printed with a ~ and fail the run only if they could not be
measured at all. Requests and the time of a walk count.
"""

WALK = Measure(
    "walk",
    "Finding the one checkpoint",
    walking.measure_walking,
    columns=(
        Column("seconds", "until restored", duration, spread=True),
        Column("requests", "requests", count),
        Column("winner", "and for the winner", count),
    ),
    ours=walking.OURS,
    panel=Bars("seconds"),
    aims=[
        aim
        for row in walking.OURS
        for aim in (
            at_most(f"requests besides the winner's, {row}", median(row, "requests"), 200, count),
            at_most(f"until restored, {row}", median(row, "seconds"), 2.0, seconds),
        )
    ],
)

SAVING = Measure(
    "saving",
    "Saving until durable",
    saving.measure_saving,
    columns=(
        Column("seconds", "each", duration, spread=True),
        Column("added", "added to it", duration),
        Column("share", "of it", signed_percent),
    ),
    ours=saving.OURS,
    panel=Bars("seconds"),
    aims=[  # too noisy in the few rounds of a quick run to decide anything
        at_most(f"claims and fences, of a 60 MB save, {store}", median(saving.CHAINED[store], "share"), 0.10, percent)
        for store in saving.STORES
    ],
    counts=Counts.FULL,
)

FORWARD = Measure(
    "forward",
    "Restoring",
    forwarding.measure_forwarding,
    columns=(
        Column("seconds", "each", duration, spread=True),
        Column("added", "added to it", duration),
        Column("requests", "requests", count),
    ),
    ours=forwarding.REFERRED.values(),
    panel=Bars("seconds"),
    aims=[  # ratios without a bound: they must only have been measured
        at_least(
            f"through a reference against directly, {store}",
            paired_ratio("seconds", forwarding.REFERRED[store], forwarding.DIRECT[store]),
            0,
            times,
        )
        for store in saving.STORES
    ],
)

ATTEMPTS = Measure(
    "attempts",
    "Attempts",
    attempts.measure_attempts,
    columns=(
        Column("requests", "requests each, besides files", count),
        Column("most", "at most", count),
        Column("states", "states on the store", count),
    ),
    ours=attempts.OURS,
    panel=Bars("requests"),
    aims=[
        aim
        for row in attempts.OURS
        for aim in (
            at_most(f"requests of an attempt besides files, {row}", median(row, "most"), 40, count),
            at_most(f"states on the store, {row}", median(row, "states"), attempts.KEPT + 2, count),
        )
    ],
)

BENCHMARK = Benchmark(
    folder=Path(__file__).resolve().parent,
    title="Resuming",
    help=Help(
        about="What finding the newest good checkpoint costs, and what claims and fences add to a save.",
        quick="less than a minute: fewer rounds",
        disk="1 GB",
        epilog=EPILOG,
    ),
    measures=(WALK, SAVING, FORWARD, ATTEMPTS),
    set_up=set_up,
    packages=("chockstone", "flytekit", "s3fs", "boto3", "obstore", "moto", "torch"),
    has_servers=False,
    hidden_logs=logging.CRITICAL,  # flytekit logs each candidate that it does not find
)

if __name__ == "__main__":
    sys.exit(BENCHMARK.main())
