"""Benchmarks that start servers: one command for all of them."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console

from benchmarks import command
from benchmarks.environment import describe_environment
from benchmarks.server.figures import Figure
from benchmarks.server.report import print_figures
from benchmarks.server.results import PACKAGES, Results


@dataclass(frozen=True, slots=True)
class Programme:
    wanted: frozenset[str]
    directory: Path
    say: Callable[[str], None]  # what is going on, for whoever waits
    finished: Callable[[str], None]  # a measure is in the results now


@dataclass(frozen=True, slots=True)
class Benchmark:
    folder: Path
    measures: Sequence[str]
    about: str
    quick: str  # how long it takes, and what is left out
    disk: str  # that a full run needs
    epilog: str
    perform: Callable[[Programme, Results], None]
    figures: Callable[[Results], list[Figure]]
    draw: Callable[[Results, Path], None]
    print_measure: Callable[[Console, Results, str], None]

    def main(self) -> int:
        """Returns the exit code."""
        options = command.Options(
            self.folder, self.measures, about=self.about, quick=self.quick, disk=self.disk, epilog=self.epilog
        )
        options.parser.add_argument(
            "--threads",
            type=int,
            default=len(os.sched_getaffinity(0)),
            metavar="N",
            help="for arithmetic, in servers and baselines alike (default: every core, %(default)s)",
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
                finished=lambda measure: self.print_measure(console, results, measure),
            )
            self.perform(programme, results)

        promised = self.figures(results)
        print_figures(console, promised, quick=results.quick)
        console.print(
            f"Medians. {environment['machine']}, {results.threads} threads in each server; load average "
            f"{environment['load_before']} before the run: above half a core, something else was at work and the "
            "figures are worth less."
        )
        return command.conclude(arguments, results, promised, self.draw)
