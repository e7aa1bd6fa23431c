"""Command: the options of the benchmark and what it prints."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console

from benchmarks import command
from benchmarks.environment import describe_environment
from benchmarks.lifecycle.figures import figures
from benchmarks.lifecycle.plot import draw
from benchmarks.lifecycle.programme import MEASURES, Programme, perform
from benchmarks.lifecycle.report import print_measure
from benchmarks.server.report import print_figures
from benchmarks.server.results import PACKAGES, Results

EPILOG = """\
With --quick, the F-like run is a small stand-in: its figure is printed with a ~ and fails the run only if it
could not be measured at all. The archive that is downloaded is a third of its size; its figure counts.
"""


def main() -> int:
    arguments = command.Options(
        Path(__file__).resolve().parent,
        MEASURES,
        about="What saving, listing, downloading and deleting checkpoints through the server costs.",
        quick="less than a minute: smaller archives, fewer repeats",
        disk="8 GB",
        epilog=EPILOG,
    ).parse()
    parent = command.prepare(arguments)
    threads = len(os.sched_getaffinity(0))
    environment = describe_environment(parent, packages=PACKAGES, now=datetime.now(UTC))
    results = Results(arguments.quick, threads, environment)
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
