"""Command: options, scratch space and the exit code."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console

from benchmarks import command
from benchmarks.distributed.figures import figures
from benchmarks.distributed.plot import draw
from benchmarks.distributed.programme import MEASURES, perform
from benchmarks.distributed.report import print_measure
from benchmarks.distributed.stage import FULL, QUICK, Stage
from benchmarks.environment import describe_environment
from benchmarks.server.report import print_figures
from benchmarks.server.results import Results

PACKAGES = ("chockstone", "torch")
EPILOG = """\
With --quick the state is smaller and rounds are few: figures are printed with a ~ and fail the run only if they could
not be measured at all.
"""


def main() -> int:
    folder = Path(__file__).resolve().parent
    about = "One archive saved and loaded by several ranks, and what keeping ranks in step costs."
    quick = "less than a minute: a small state, few rounds"
    options = command.Options(folder, MEASURES, about=about, quick=quick, disk="8 GB", epilog=EPILOG)
    options.ask_for_memory()
    arguments = options.parse()
    parent = command.prepare(arguments)
    environment = describe_environment(parent, packages=PACKAGES, now=datetime.now(UTC))
    results = Results(arguments.quick, len(os.sched_getaffinity(0)), environment)
    console = command.console()
    with (
        Console(stderr=True).status("starting") as status,
        TemporaryDirectory(dir=parent, prefix="chockstone-benchmark-") as scratch,
    ):
        scale = QUICK if arguments.quick else FULL
        stage = Stage(scale, Path(scratch), temperature=arguments.memory, titles=results.titles, say=status.update)
        perform(stage, results, arguments.only, lambda measure: print_measure(console, results, measure))

    promised = figures(results)
    print_figures(console, promised, quick=results.quick)
    console.print(
        f"Medians. {environment['machine']}; {arguments.memory} free memory (--memory); load average "
        f"{environment['load_before']} before the run: above half a core, something else was at work and the figures "
        "are worth less."
    )
    return command.conclude(arguments, results, promised, draw)
