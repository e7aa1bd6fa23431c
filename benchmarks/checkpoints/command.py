"""Command: the options of the benchmark and what it prints."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console

from benchmarks import command
from benchmarks.checkpoints.figures import Figure, figures
from benchmarks.checkpoints.plot import draw
from benchmarks.checkpoints.programme import MEASURES, Programme, perform
from benchmarks.checkpoints.report import print_figures, print_measure, print_scaling
from benchmarks.checkpoints.results import PACKAGES, Results
from benchmarks.environment import describe_environment

EPILOG = """\
With --quick, L keeps its size and at least five repeats, so its figures count. F is replaced by a small
state of the same structure and scaling is cut short: their figures are printed with a ~ and do not fail the
run. Bytes written are exact at any size and always count. The slowest peers (gzip, DCP in a process) sit it out.
"""


def main() -> int:
    options = command.Options(
        Path(__file__).resolve().parent,
        MEASURES,
        about="What a checkpoint costs: ours beside its peers and the limits of this machine.",
        quick="under a minute: smaller F, shorter scaling",
        disk="15 GB",
        epilog=EPILOG,
    )
    options.ask_for_memory()
    arguments = options.parse()
    parent = command.prepare(arguments)
    results = Results(
        arguments.quick, arguments.memory, describe_environment(parent, packages=PACKAGES, now=datetime.now(UTC))
    )
    console = command.console()
    with (
        Console(stderr=True).status("starting") as status,
        TemporaryDirectory(dir=parent, prefix="chockstone-benchmark-") as scratch,
    ):
        programme = Programme(
            wanted=arguments.only,
            directory=Path(scratch),
            say=status.update,
            finished=lambda measure, state: print_measure(console, results, measure, state),
        )
        perform(programme, results)

    promised = figures(results)
    _explain(console, results, promised)
    return command.conclude(arguments, results, promised, draw)


def _explain(console: Console, results: Results, promised: list[Figure]) -> None:
    if results.scaling:
        print_scaling(console, results)
    print_figures(console, promised, quick=results.quick)
    console.print(
        "Medians of interleaved rounds after one uncounted warm-up round. Every save is fsynced, files and "
        "directories; before every restore its files are dropped from the page cache.\n"
        f"{results.environment['machine']}, {results.environment['filesystem']}; "
        f"{results.temperature} free memory (--memory); load average {results.environment['load_before']} before "
        "the run: above half a core, something else was at work and the ratios are worth less."
    )
