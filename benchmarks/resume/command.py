"""Command: options, scratch space, the S3 server, and the exit code."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console

from benchmarks import command
from benchmarks.environment import describe_environment
from benchmarks.resume.figures import figures
from benchmarks.resume.loopback import loopback
from benchmarks.resume.plot import draw
from benchmarks.resume.programme import MEASURES, perform
from benchmarks.resume.report import print_measure
from benchmarks.resume.stage import FULL, QUICK, Stage
from benchmarks.server.report import print_figures
from benchmarks.server.results import Results

PACKAGES = ("chockstone", "flytekit", "s3fs", "boto3", "obstore", "moto", "torch")
EPILOG = """\
With --quick there are fewer rounds: shares of a save are printed with a ~ and fail the run only if they could not be
measured at all. Requests and the time of a walk count.
"""


def main() -> int:
    folder = Path(__file__).resolve().parent
    about = "What finding the newest good checkpoint costs, and what claims and fences add to a save."
    quick = "less than a minute: fewer rounds"
    arguments = command.Options(folder, MEASURES, about=about, quick=quick, disk="1 GB", epilog=EPILOG).parse()
    parent = command.prepare(arguments)
    environment = describe_environment(parent, packages=PACKAGES, now=datetime.now(UTC))
    results = Results(arguments.quick, len(os.sched_getaffinity(0)), environment)
    console = command.console()
    with (
        Console(stderr=True).status("starting") as status,
        TemporaryDirectory(dir=parent, prefix="chockstone-benchmark-") as scratch,
        loopback() as s3,
    ):
        stage = Stage(scale=QUICK if arguments.quick else FULL, directory=Path(scratch), s3=s3, say=status.update)
        perform(stage, results, arguments.only, lambda measure: print_measure(console, results, measure))

    promised = figures(results)
    print_figures(console, promised, quick=results.quick)
    console.print(
        f"Medians. {environment['machine']}; load average {environment['load_before']} before the run: above half a "
        "core, something else was at work and the figures are worth less."
    )
    return command.conclude(arguments, results, promised, draw)
