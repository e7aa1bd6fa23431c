"""The command of a benchmark: the options that all have, where they write, and their exit code."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar, get_args

from rich.console import Console

from benchmarks.checkpoints.durability import MEMORY_FILESYSTEMS, default_directory, filesystem_of
from benchmarks.checkpoints.free_memory import Temperature

EXIT_CODES = """\
Exit code: 0 when every figure is reached; 1 when one is missed or could not be measured, each named;
2 when the benchmark cannot run here.
"""


class Figure(Protocol):
    @property
    def missed(self) -> bool: ...

    @property
    def sentence(self) -> str: ...

    def as_json(self) -> dict[str, Any]: ...  # Any: JSON


class Results(Protocol):
    def as_json(self) -> dict[str, Any]: ...  # Any: JSON


AnyResults = TypeVar("AnyResults", bound=Results)


class Options:
    """The options of one benchmark; ``parser`` takes more before ``parse`` is called."""

    def __init__(
        self, folder: Path, measures: Sequence[str], *, about: str, quick: str, disk: str, epilog: str
    ) -> None:
        self._measures = measures
        self._asks_for_memory = False
        self._picture = folder / "figures.png"
        self.parser = argparse.ArgumentParser(
            prog=f"benchmarks/{folder.name}/run.py",
            description=about,
            epilog=f"{EXIT_CODES}\n{epilog}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        self.parser.add_argument("--quick", action="store_true", help=quick)
        self.parser.add_argument("--json", type=Path, metavar="FILE", help="write every sample and figure as JSON")
        picture = f"write the picture as PNG (a full run of all measures writes {self._picture.name} beside run.py)"
        self.parser.add_argument("--plot", type=Path, metavar="FILE", help=picture)
        where = f"where to write; on a disk, with {disk} free for a full run"
        self.parser.add_argument("--directory", type=Path, metavar="DIR", help=where)
        self.parser.add_argument(
            "--only",
            type=self._chosen,
            default=frozenset(measures),
            metavar="MEASURE,…",
            help=f"some of {','.join(measures)}",
        )

    def ask_for_memory(self) -> None:
        """Have ``parse`` set ``memory``, a Temperature."""
        self.parser.add_argument(
            "--memory",
            choices=get_args(Temperature),
            help="the free memory that contestants find: cold, as a save every few minutes finds it on virtual "
            "machines that hand free memory back to their host (default), or warm, as on bare metal, where both are "
            "the same (default with --quick, because cold takes pauses)",
        )
        self._asks_for_memory = True

    def parse(self) -> argparse.Namespace:
        arguments = self.parser.parse_args()
        if self._asks_for_memory and arguments.memory is None:
            arguments.memory = "warm" if arguments.quick else "cold"
        if arguments.plot is None and not arguments.quick and arguments.only == frozenset(self._measures):
            arguments.plot = self._picture
        return arguments

    def _chosen(self, text: str) -> frozenset[str]:
        chosen = frozenset(part.strip() for part in text.split(","))
        if unknown := chosen - set(self._measures):
            raise argparse.ArgumentTypeError(f"{sorted(unknown)} unknown; choose from {', '.join(self._measures)}")
        return chosen


def prepare(arguments: argparse.Namespace) -> Path:
    """Be quiet, end cleanly when told to, and return the directory to write in; exits where that is no disk."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that servers and files are removed
    warnings.simplefilter("ignore")  # the deprecations of peers and SDK are not ours to show
    parent: Path = arguments.directory or default_directory()
    parent.mkdir(parents=True, exist_ok=True)
    if filesystem_of(parent) in MEMORY_FILESYSTEMS:
        print(f"{str(parent)!r} is in memory, not on a disk: name another --directory", file=sys.stderr)
        sys.exit(2)
    return parent


def console() -> Console:
    return Console() if sys.stdout.isatty() else Console(width=150)


def conclude(
    arguments: argparse.Namespace,
    results: AnyResults,
    figures: Sequence[Figure],
    draw: Callable[[AnyResults, Path], None],
) -> int:
    """Write what was asked for, name what was missed, and return the exit code."""
    if arguments.json is not None:
        document = results.as_json() | {"figures": [figure.as_json() for figure in figures]}
        arguments.json.write_text(json.dumps(document, indent=1) + "\n")
        print(f"numbers: {arguments.json}")
    if arguments.plot is not None:
        draw(results, arguments.plot)
        print(f"plot: {arguments.plot}")
    missed = [figure for figure in figures if figure.missed]
    for figure in missed:
        print(f"missed: {figure.sentence}", file=sys.stderr)
    return 1 if missed else 0
