"""Command: what is particular about this benchmark."""

from __future__ import annotations

from pathlib import Path

from benchmarks.benchmark import Benchmark
from benchmarks.distributed.figures import figures
from benchmarks.distributed.plot import draw
from benchmarks.distributed.programme import MEASURES, perform
from benchmarks.distributed.report import print_measure

PACKAGES = ("chockstone", "torch")
EPILOG = """\
With --quick the state is smaller and rounds are few: figures are printed with a ~ and fail the run only if they could
not be measured at all.
"""


def main() -> int:
    return Benchmark(
        folder=Path(__file__).resolve().parent,
        measures=MEASURES,
        about="One archive saved and loaded by several ranks, and what keeping ranks in step costs.",
        quick="less than a minute: a small state, few rounds",
        disk="8 GB",
        epilog=EPILOG,
        perform=perform,
        figures=figures,
        draw=draw,
        print_measure=print_measure,
        packages=PACKAGES,
        has_servers=False,
        asks_for_memory=True,
    ).main()
