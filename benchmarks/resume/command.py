"""Command: what is particular about this benchmark."""

from __future__ import annotations

from pathlib import Path

from benchmarks.benchmark import Benchmark
from benchmarks.resume.figures import figures
from benchmarks.resume.plot import draw
from benchmarks.resume.programme import MEASURES, perform
from benchmarks.resume.report import print_measure

PACKAGES = ("chockstone", "flytekit", "s3fs", "boto3", "obstore", "moto", "torch")
EPILOG = """\
With --quick there are fewer rounds: shares of a save are printed with a ~ and fail the run only if they could not be
measured at all. Requests and the time of a walk count.
"""


def main() -> int:
    return Benchmark(
        folder=Path(__file__).resolve().parent,
        measures=MEASURES,
        about="What finding the newest good checkpoint costs, and what claims and fences add to a save.",
        quick="less than a minute: fewer rounds",
        disk="1 GB",
        epilog=EPILOG,
        perform=perform,
        figures=figures,
        draw=draw,
        print_measure=print_measure,
        packages=PACKAGES,
        has_servers=False,
    ).main()
