"""The command line of a benchmark: the options that all have, where they write, and the exit code."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from rich.console import Console

from benchmarks.harness.aims import Figure
from benchmarks.harness.disk import MEMORY_FILESYSTEMS, default_directory, filesystem_of
from benchmarks.harness.free_memory import Temperature
from benchmarks.harness.results import Results

EXIT_CODES = """\
Exit code: 0 when every figure is reached; 1 when one is missed or could not be measured, each named;
2 when the benchmark cannot run here.
"""


@dataclass(frozen=True, slots=True)
class Help:
    """What ``--help`` says of one benchmark."""

    about: str
    quick: str  # how long a quick run takes, and what is smaller in it
    disk: str  # that a full run needs
    epilog: str


@dataclass(frozen=True, slots=True)
class Options:
    quick: bool
    chosen: frozenset[str]
    threads: int
    temperature: Temperature
    directory: Path
    json: Path | None
    plot: Path | None


def parse_options(
    folder: Path, words: Sequence[str], help_: Help, *, has_servers: bool, controls_memory: bool
) -> Options:
    """``words``: what ``--only`` may name. Exits with 2 where a directory is given that is not on a disk."""
    picture = folder.parents[1] / "docs" / "figures" / f"benchmarks-{folder.name}.png"
    parser = argparse.ArgumentParser(
        prog=f"benchmarks/{folder.name}/run.py",
        description=help_.about,
        epilog=f"{EXIT_CODES}\n{help_.epilog}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--quick", action="store_true", help=help_.quick)
    add("--json", type=Path, metavar="FILE", help="write every sample and figure as JSON")
    in_docs = f"write the picture as PNG (a full run of all measures writes docs/figures/{picture.name})"
    add("--plot", type=Path, metavar="FILE", help=in_docs)
    where = f"directory to write in; on a disk, with {help_.disk} free for a full run"
    add("--directory", type=Path, metavar="DIR", help=where)
    everything = frozenset(words)
    only = f"measures to run, some of {','.join(words)} (default: all)"
    add("--only", type=_chosen_from(words), default=everything, metavar="MEASURE,…", help=only)
    if has_servers:
        threads = "threads for arithmetic, in servers and baselines alike (default: every core, %(default)s)"
        add("--threads", type=int, default=core_count(), metavar="N", help=threads)
    if controls_memory:
        add(
            "--memory",
            choices=get_args(Temperature),
            help="the free memory that contestants find: cold, as a save every few minutes finds it on virtual "
            "machines that hand free memory back to their host (default), or warm, as on bare metal, where both are "
            "the same (default with --quick, because cold takes pauses)",
        )
    found = parser.parse_args()
    is_complete = not found.quick and found.only == everything
    return Options(
        quick=found.quick,
        chosen=found.only,
        threads=found.threads if has_servers else core_count(),
        temperature=(found.memory or ("warm" if found.quick else "cold")) if controls_memory else "warm",
        directory=_on_a_disk(found.directory or default_directory()),
        json=found.json,
        plot=found.plot or (picture if is_complete else None),
    )


def core_count() -> int:
    return len(os.sched_getaffinity(0))


def new_console() -> Console:
    return Console() if sys.stdout.isatty() else Console(width=150)


def conclude(
    options: Options, results: Results, figures: Sequence[Figure], draw: Callable[[Results, Path], None]
) -> int:
    """Write the files that were asked for, name each figure that was missed, and return the exit code."""
    if options.json is not None:
        document = results.as_json() | {"figures": [figure.as_json() for figure in figures]}
        options.json.write_text(json.dumps(document, indent=1) + "\n")
        print(f"numbers: {options.json}")
    if options.plot is not None:
        draw(results, options.plot)
        print(f"plot: {options.plot}")
    missed = [figure for figure in figures if figure.missed]
    for figure in missed:
        print(f"missed: {figure.sentence}", file=sys.stderr)
    return 1 if missed else 0


def _chosen_from(words: Sequence[str]) -> Callable[[str], frozenset[str]]:
    def choose(text: str) -> frozenset[str]:
        chosen = frozenset(part.strip() for part in text.split(","))
        if unknown := chosen - set(words):
            raise argparse.ArgumentTypeError(f"{sorted(unknown)} unknown; choose from {', '.join(words)}")
        return chosen

    return choose


def _on_a_disk(directory: Path) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    if filesystem_of(directory) in MEMORY_FILESYSTEMS:
        print(f"{str(directory)!r} is in memory, not on a disk: name another --directory", file=sys.stderr)
        sys.exit(2)
    return directory.resolve()
