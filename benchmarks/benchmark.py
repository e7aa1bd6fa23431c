"""A benchmark of several measures: one command, and one way through them, for all folders but the first."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console

from benchmarks import command
from benchmarks.checkpoints.durability import remove
from benchmarks.checkpoints.free_memory import Temperature
from benchmarks.checkpoints.rounds import Series
from benchmarks.environment import describe_environment
from benchmarks.server.figures import Figure
from benchmarks.server.report import print_figures
from benchmarks.server.results import PACKAGES, Results


@dataclass(frozen=True, slots=True)
class Programme:
    wanted: frozenset[str]
    directory: Path
    memory: Temperature  # of what contestants find free
    say: Callable[[str], None]  # what is going on, for whoever waits
    finished: Callable[[str], None]  # a measure is in the results now

    def say_of(self, measure: str) -> Callable[[str], None]:
        return lambda line: self.say(f"{measure}: {line}")

    def perform(self, measure: str, make: Callable[[], dict[str, Series]], results: Results) -> None:
        """Add one measure to the results; one that fails leaves its reason there. What it left in a directory goes."""
        try:
            results.measured[measure] = make()
        except Exception:  # recorded: its figures are then not measured, which fails the run
            results.failures[measure] = traceback.format_exc(limit=-4)
        if (place := self.directory / measure).exists():
            remove(place)
        self.finished(measure)


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
    packages: Sequence[str] = PACKAGES
    has_servers: bool = True  # so that their threads can be set
    asks_for_memory: bool = False

    def main(self) -> int:
        """Returns the exit code."""
        arguments = self._options().parse()
        parent = command.prepare(arguments)
        environment = describe_environment(parent, packages=self.packages, now=datetime.now(UTC))
        threads = arguments.threads if self.has_servers else _cores()
        memory: Temperature = arguments.memory if self.asks_for_memory else "warm"
        results = Results(arguments.quick, threads, environment)
        console = command.console()
        with (
            Console(stderr=True).status("starting") as status,
            TemporaryDirectory(dir=parent, prefix="chockstone-benchmark-") as scratch,
        ):
            programme = Programme(
                wanted=arguments.only,
                directory=Path(scratch),
                memory=memory,
                say=status.update,
                finished=lambda measure: self.print_measure(console, results, measure),
            )
            self.perform(programme, results)

        promised = self.figures(results)
        print_figures(console, promised, quick=results.quick)
        console.print(
            f"Medians. {environment['machine']}{f', {threads} threads in each server' if self.has_servers else ''}"
            f"{f'; {memory} free memory (--memory)' if self.asks_for_memory else ''}; load average "
            f"{environment['load_before']} before the run: above half a core, something else was at work and the "
            "figures are worth less."
        )
        return command.conclude(arguments, results, promised, self.draw)

    def _options(self) -> command.Options:
        options = command.Options(
            self.folder, self.measures, about=self.about, quick=self.quick, disk=self.disk, epilog=self.epilog
        )
        if self.has_servers:
            options.parser.add_argument(
                "--threads",
                type=int,
                default=_cores(),
                metavar="N",
                help="for arithmetic, in servers and baselines alike (default: every core, %(default)s)",
            )
        if self.asks_for_memory:
            options.ask_for_memory()
        return options


def _cores() -> int:
    return len(os.sched_getaffinity(0))
