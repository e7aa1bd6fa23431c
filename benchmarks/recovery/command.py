"""Command: what is particular about this benchmark."""

from __future__ import annotations

from pathlib import Path

from benchmarks.benchmark import Benchmark
from benchmarks.recovery.figures import figures
from benchmarks.recovery.plot import draw
from benchmarks.recovery.programme import MEASURES, perform
from benchmarks.recovery.report import print_measure

EPILOG = """\
With --quick, turns are short, the recovered model is small and few runs are parked: those figures are printed with
a ~ and fail the run only if they could not be measured at all. The 100M model's steps are left out.
"""


def main() -> int:
    return Benchmark(
        folder=Path(__file__).resolve().parent,
        measures=MEASURES,
        about="What it costs that crashes go unnoticed, how long they last, and what idle runs take.",
        quick="less than a minute: a smaller model, fewer runs and repeats",
        disk="5 GB",
        epilog=EPILOG,
        perform=perform,
        figures=figures,
        draw=draw,
        print_measure=print_measure,
    ).main()
