"""Command: the options of the benchmark and what it prints."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console

from benchmarks import command
from benchmarks.environment import describe_environment
from benchmarks.server.report import print_figures
from benchmarks.server.results import PACKAGES, Results

from .figures import figures
from .plot import draw
from .programme import MEASURES, Programme, perform
from .report import print_measure

EPILOG = """\
With --quick, F is a stand-in of 97 MB, windows are short and repeats few: figures are printed with a ~ and fail the
run only if they could not be measured at all.
"""


def main() -> int:
    options = command.Options(
        Path(__file__).resolve().parent,
        MEASURES,
        about="What saving costs a program that must not stop, and what overlapping gains.",
        quick="about a minute: smaller states, shorter windows, fewer repeats",
        disk="12 GB",
        epilog=EPILOG,
    )
    options.parser.add_argument(
        "--threads",
        type=int,
        default=len(os.sched_getaffinity(0)),
        metavar="N",
        help="for arithmetic, in each server (default: every core, %(default)s)",
    )
    arguments = options.parse()
    parent = command.prepare(arguments)
    environment = describe_environment(parent, packages=PACKAGES, now=datetime.now(UTC))
    results = Results(arguments.quick, arguments.threads, environment)
    console = command.console()
    with (
        Console(stderr=True).status("starting") as status,
        TemporaryDirectory(dir=parent, prefix="chockstone-benchmark-") as scratch,
    ):
        programme = Programme(
            wanted=arguments.only,
            directory=Path(scratch),
            say=status.update,
            finished=lambda measure: print_measure(console, results, measure),
        )
        perform(programme, results)

    promised = figures(results)
    print_figures(console, promised, quick=results.quick)
    console.print(
        f"Medians. {environment['machine']}; load average {environment['load_before']} before the run: above half a "
        "core, something else was at work and the figures are worth less."
    )
    return command.conclude(arguments, results, promised, draw)
