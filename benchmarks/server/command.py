"""Command: what is particular about this benchmark."""

from __future__ import annotations

from pathlib import Path

from benchmarks.benchmark import Benchmark
from benchmarks.server.figures import figures
from benchmarks.server.plot import draw
from benchmarks.server.programme import MEASURES, perform
from benchmarks.server.report import print_measure

EPILOG = """\
With --quick, the small model keeps its size, so the figures of start, overhead, small-sampling and neighbour count. The
large models are replaced by small ones: their figures are printed with a ~ and fail the run only if they
could not be measured at all.
"""


def main() -> int:
    return Benchmark(
        folder=Path(__file__).resolve().parent,
        measures=MEASURES,
        about="What the server costs, through the real SDK, beside bare PyTorch, PEFT and transformers.",
        quick="about a minute: smaller models, fewer repeats",
        disk="6 GB",
        epilog=EPILOG,
        perform=perform,
        figures=figures,
        draw=draw,
        print_measure=print_measure,
    ).main()
