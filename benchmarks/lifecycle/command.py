"""Command: the options of the benchmark, what it prints and writes, and its exit code."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import warnings
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console

from benchmarks.checkpoints.durability import MEMORY_FILESYSTEMS, default_directory, filesystem_of
from benchmarks.environment import describe_environment
from benchmarks.lifecycle.figures import figures
from benchmarks.lifecycle.plot import draw
from benchmarks.lifecycle.programme import MEASURES, Programme, perform
from benchmarks.lifecycle.report import print_measure
from benchmarks.server.report import print_figures
from benchmarks.server.results import PACKAGES, Results

FIGURES_PNG = Path(__file__).resolve().parent / "figures.png"

EPILOG = """\
Exit code: 0 when every figure is reached; 1 when one is missed or could not be measured, each named;
2 when the benchmark cannot run here.

With --quick, the F-like run is a small stand-in: its figure is printed with a ~ and fails the run only if it
could not be measured at all. The archive that is downloaded is a third of its size; its figure counts.
"""


def main() -> int:
    arguments = _parse()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that server and files are removed
    warnings.simplefilter("ignore")  # the SDK's deprecations are not ours to show
    parent: Path = arguments.directory or default_directory()
    parent.mkdir(parents=True, exist_ok=True)
    if filesystem_of(parent) in MEMORY_FILESYSTEMS:
        print(f"{str(parent)!r} is in memory, not on a disk: name another --directory", file=sys.stderr)
        return 2

    threads = len(os.sched_getaffinity(0))
    environment = describe_environment(parent, packages=PACKAGES, now=datetime.now(UTC))
    results = Results(arguments.quick, threads, environment)
    console = Console() if sys.stdout.isatty() else Console(width=150)
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
    if arguments.json is not None:
        document = results.as_json() | {"figures": [figure.as_json() for figure in promised]}
        arguments.json.write_text(json.dumps(document, indent=1) + "\n")
        print(f"numbers: {arguments.json}")
    if arguments.plot is not None:
        draw(results, arguments.plot)
        print(f"plot: {arguments.plot}")
    missed = [figure for figure in promised if figure.missed]
    for figure in missed:
        print(f"missed: {figure.sentence}", file=sys.stderr)
    return 1 if missed else 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="benchmarks/lifecycle/run.py",
        description="What saving, listing, downloading and deleting checkpoints through the server costs.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="less than a minute: smaller archives, fewer repeats")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every sample and figure as JSON")
    parser.add_argument(
        "--plot",
        type=Path,
        metavar="FILE",
        help=f"write the picture as PNG (a full run of all measures writes {FIGURES_PNG.name} beside run.py)",
    )
    parser.add_argument(
        "--directory", type=Path, metavar="DIR", help="where to write; on a disk, with 8 GB free for a full run"
    )
    parser.add_argument(
        "--only",
        type=_measures,
        default=frozenset(MEASURES),
        metavar="MEASURE,…",
        help=f"some of {','.join(MEASURES)}",
    )
    arguments = parser.parse_args()
    if arguments.plot is None and not arguments.quick and arguments.only == frozenset(MEASURES):
        arguments.plot = FIGURES_PNG
    return arguments


def _measures(text: str) -> frozenset[str]:
    chosen = frozenset(part.strip() for part in text.split(","))
    if unknown := chosen - set(MEASURES):
        raise argparse.ArgumentTypeError(f"{sorted(unknown)} unknown; choose from {', '.join(MEASURES)}")
    return chosen
