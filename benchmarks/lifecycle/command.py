"""Command: what is particular about this benchmark."""

from __future__ import annotations

from pathlib import Path

from benchmarks.benchmark import Benchmark
from benchmarks.lifecycle.figures import figures
from benchmarks.lifecycle.plot import draw
from benchmarks.lifecycle.programme import MEASURES, perform
from benchmarks.lifecycle.report import print_measure

EPILOG = """\
With --quick, the F-like run is a small stand-in: its figure is printed with a ~ and fails the run only if it
could not be measured at all. The archive that is downloaded is a third of its size; its figure counts.
"""


def main() -> int:
    return Benchmark(
        folder=Path(__file__).resolve().parent,
        measures=MEASURES,
        about="What saving, listing, downloading and deleting checkpoints through the server costs.",
        quick="less than a minute: smaller archives, fewer repeats",
        disk="8 GB",
        epilog=EPILOG,
        perform=perform,
        figures=figures,
        draw=draw,
        print_measure=print_measure,
    ).main()
