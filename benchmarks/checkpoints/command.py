"""Command: the options of the benchmark, what it prints and writes, and its exit code."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import warnings
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console

from benchmarks.checkpoints.durability import MEMORY_FILESYSTEMS, default_directory, filesystem_of
from benchmarks.checkpoints.figures import Figure, figures
from benchmarks.checkpoints.plot import draw
from benchmarks.checkpoints.programme import MEASURES, Programme, perform
from benchmarks.checkpoints.report import print_figures, print_measure, print_scaling
from benchmarks.checkpoints.results import PACKAGES, Results
from benchmarks.environment import describe_environment

FIGURES_PNG = Path(__file__).resolve().parent / "figures.png"

EPILOG = """\
Exit code: 0 when every figure is reached; 1 when one is missed or could not be measured, each named;
2 when the benchmark cannot run here.

With --quick, L keeps its size and at least five repeats, so its figures count. F is replaced by a small
state of the same structure and scaling is cut short: their figures are printed with a ~ and do not fail the
run. Bytes written are exact at any size and always count. The slowest peers (gzip, DCP in a process) sit it out.
"""


def main() -> int:
    arguments = _parse()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that the files are removed
    warnings.simplefilter("ignore")  # the peers' deprecations are not ours to show
    parent: Path = arguments.directory or default_directory()
    parent.mkdir(parents=True, exist_ok=True)
    if filesystem_of(parent) in MEMORY_FILESYSTEMS:
        print(f"{str(parent)!r} is in memory, not on a disk: name another --directory", file=sys.stderr)
        return 2

    temperature = arguments.memory or ("warm" if arguments.quick else "cold")
    results = Results(
        arguments.quick, temperature, describe_environment(parent, packages=PACKAGES, now=datetime.now(UTC))
    )
    console = Console() if sys.stdout.isatty() else Console(width=150)
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
    _conclude(console, results, promised)
    _write(arguments, results, promised)
    missed = [figure for figure in promised if figure.missed]
    for figure in missed:
        print(f"missed: {figure.sentence}", file=sys.stderr)
    return 1 if missed else 0


def _conclude(console: Console, results: Results, promised: list[Figure]) -> None:
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


def _write(arguments: argparse.Namespace, results: Results, promised: list[Figure]) -> None:
    if arguments.json is not None:
        document = results.as_json() | {"figures": [figure.as_json() for figure in promised]}
        arguments.json.write_text(json.dumps(document, indent=1) + "\n")
        print(f"numbers: {arguments.json}")
    if arguments.plot is not None:
        draw(results, arguments.plot)
        print(f"plot: {arguments.plot}")


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="benchmarks/checkpoints/run.py",
        description="What a checkpoint costs: ours beside its peers and the limits of this machine.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="under a minute: smaller F, shorter scaling")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every sample and figure as JSON")
    parser.add_argument(
        "--plot",
        type=Path,
        metavar="FILE",
        help=f"write the picture as PNG (a full run of all measures writes {FIGURES_PNG.name} beside run.py)",
    )
    parser.add_argument(
        "--directory",
        type=Path,
        metavar="DIR",
        help="where to write; on a disk, with 15 GB free for a full run",
    )
    parser.add_argument(
        "--memory",
        choices=("warm", "cold"),
        help="the free memory that contestants find: cold, as a save every few minutes finds it on virtual machines "
        "that hand free memory back to their host (default), or warm, as on bare metal, where both are the same "
        "(default with --quick, because cold takes pauses)",
    )
    parser.add_argument(
        "--only",
        type=_measures,
        default=frozenset(MEASURES),
        metavar="MEASURE,…",
        help=f"some of {','.join(MEASURES)}; memory is measured with stall",
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
