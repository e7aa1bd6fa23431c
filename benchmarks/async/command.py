"""Command: what is particular about this benchmark."""

from __future__ import annotations

from pathlib import Path

from benchmarks.benchmark import Benchmark

from .figures import figures
from .plot import draw
from .programme import MEASURES, perform
from .report import print_measure

EPILOG = """\
With --quick, F is a stand-in of 97 MB, windows are short and repeats few: figures are printed with a ~ and fail the
run only if they could not be measured at all.
"""


def main() -> int:
    return Benchmark(
        folder=Path(__file__).resolve().parent,
        measures=MEASURES,
        about="What saving costs a program that must not stop, and what overlapping gains.",
        quick="about a minute: smaller states, shorter windows, fewer repeats",
        disk="12 GB",
        epilog=EPILOG,
        perform=perform,
        figures=figures,
        draw=draw,
        print_measure=print_measure,
    ).main()
