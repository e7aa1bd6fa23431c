"""Benchmarks: the declaration of one benchmark, and its way from the command line to the exit code."""

from __future__ import annotations

import logging
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Generic

from rich.console import Console

from benchmarks.harness.command import Help, Options, conclude, new_console, parse_options
from benchmarks.harness.context import Context
from benchmarks.harness.disk import remove
from benchmarks.harness.environment import describe_environment
from benchmarks.harness.measure import Measure, Setup
from benchmarks.harness.plot import draw_grid
from benchmarks.harness.report import print_figures, print_measure
from benchmarks.harness.results import Results

SERVER_PACKAGES = ("chockstone", "tinker", "torch", "transformers", "peft", "fastapi", "uvicorn")


@dataclass(frozen=True, slots=True)
class Benchmark(Generic[Setup]):
    folder: Path
    title: str  # of the picture
    help: Help
    measures: Sequence[Measure[Setup]]  # in the order in which they run
    set_up: Callable[[Context], AbstractContextManager[Setup]]  # what all measures share; entered once
    packages: Sequence[str] = SERVER_PACKAGES  # whose versions are kept in the JSON
    has_servers: bool = True  # whether --threads is an option
    controls_memory: bool = False  # whether --memory is an option
    hidden_logs: int = logging.WARNING  # log lines up to this level are not shown
    panels_per_row: int = 4
    draw: Callable[[Sequence[Measure[Setup]], Results, Path], None] | None = None  # None: a grid of panels

    def main(self) -> int:
        """Returns the exit code."""
        words = list(dict.fromkeys(measure.chosen_by for measure in self.measures))
        options = parse_options(
            self.folder, words, self.help, has_servers=self.has_servers, controls_memory=self.controls_memory
        )
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # removes servers and files, too
        warnings.simplefilter("ignore")  # deprecations of peers and of the SDK
        logging.disable(self.hidden_logs)
        chosen = [
            measure
            for measure in self.measures
            if measure.chosen_by in options.chosen and (measure.is_in_quick_runs or not options.quick)
        ]
        results = Results(
            quick=options.quick,
            threads=options.threads,
            temperature=options.temperature if self.controls_memory else None,
            environment=describe_environment(options.directory, packages=self.packages, now=datetime.now(UTC)),
        )
        console = new_console()
        self._run(chosen, options, results, console)
        figures = results.figures(chosen)
        print_figures(console, figures, quick=results.quick)
        console.print(self._explanation(results))
        return conclude(options, results, figures, self._draw)

    def _run(self, chosen: Sequence[Measure[Setup]], options: Options, results: Results, console: Console) -> None:
        with (
            Console(stderr=True).status("starting") as status,
            TemporaryDirectory(dir=options.directory, prefix="chockstone-benchmark-") as scratch,
        ):
            context = Context(
                chosen=frozenset(measure.name for measure in chosen),
                quick=options.quick,
                threads=options.threads,
                temperature=options.temperature,
                directory=Path(scratch),
                say=status.update,
                describe=lambda _text: None,
            )
            with self.set_up(context) as setup:
                for measure in chosen:
                    _run_measure(measure, context, setup, results)
                    print_measure(console, measure, results)

    def _explanation(self, results: Results) -> str:
        threads = f", {results.threads} threads in each server" if self.has_servers else ""
        memory = "" if results.temperature is None else f"; {results.temperature} free memory (--memory)"
        return (
            "Medians of rounds in which all contestants take turns, after one uncounted round. "
            f"{results.environment['machine']}, {results.environment['filesystem']}{threads}{memory}; load average "
            f"{results.environment['load_before']} before the run: above half a core, something else was at work and "
            "the figures are worth less."
        )

    def _draw(self, results: Results, path: Path) -> None:
        if self.draw is not None:
            self.draw(self.measures, results, path)
            return
        drawn = [measure for measure in self.measures if measure.panel is not None]
        width = min(self.panels_per_row, len(drawn))
        grid = [drawn[index : index + width] for index in range(0, len(drawn), width)]
        draw_grid(grid, results, path, title=self.title, width_inches=max(18.0, 5.5 * width))


def _run_measure(measure: Measure[Setup], context: Context, setup: Setup, results: Results) -> None:
    """Add one measure to the results. One that raises leaves its traceback there, and the others run all the same."""

    def describe(text: str) -> None:
        results.titles[measure.label] = text

    directory = context.directory / measure.label.replace(" ", "-")
    directory.mkdir()
    mine = replace(
        context, directory=directory, say=lambda line: context.say(f"{measure.label}: {line}"), describe=describe
    )
    try:
        results.measured[measure.name, measure.case] = measure.run(mine, setup)
    except Exception:  # recorded: its figures are then not measured, which fails the run
        results.failures[measure.label] = traceback.format_exc(limit=-4)
    remove(directory)
