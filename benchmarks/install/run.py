"""The install benchmark: ``python benchmarks/install/run.py --help``."""

from __future__ import annotations

import sys
from pathlib import Path

if __package__ in (None, ""):  # the repository goes on the path, and this directory comes off it
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from benchmarks.harness.aims import at_most, median
from benchmarks.harness.benchmark import Benchmark
from benchmarks.harness.command import Help
from benchmarks.harness.measure import Column, Measure
from benchmarks.harness.plot import Bars
from benchmarks.harness.units import count, duration, precise_seconds, whole_megabytes
from benchmarks.install import installing, starting
from benchmarks.install.setup import PLAIN, set_up

EPILOG = """\
With --quick only the plain install is made, and there are fewer rounds; all figures count. Packages come from the
package index that pip is configured for.
"""

INSTALL = Measure(
    "install",
    "What an install brings",
    installing.measure_installing,
    columns=(
        Column("packages", "packages", count),
        Column("size_bytes", "on the disk", whole_megabytes),
        Column("of_server", "packages of the server", count),
    ),
    ours=(PLAIN,),
    panel=Bars("size_bytes"),
    aims=(at_most("packages of the server in a plain install", median(PLAIN, "of_server"), 0, count),),
)

START = Measure(
    "start",
    "Starting",
    starting.measure_starting,
    columns=(
        Column("seconds", "each", duration, spread=True),
        Column("cpu_seconds", "CPU", duration),
        Column("modules", "modules", count),
    ),
    ours=starting.OURS,
    panel=Bars("seconds"),
    aims=[at_most(row, median(row, "seconds"), 0.25, precise_seconds) for row in starting.IMPORTS],
)

BENCHMARK = Benchmark(
    folder=Path(__file__).resolve().parent,
    title="Installing and starting",
    help=Help(
        about="What `pip install chockstone` brings, and how fast the library and the command line start.",
        quick="a minute: the plain install only, fewer rounds",
        disk="6 GB",
        epilog=EPILOG,
    ),
    measures=(INSTALL, START),
    set_up=set_up,
    packages=("chockstone", "numpy", "typer", "rich", "xxhash"),
    has_servers=False,
)

if __name__ == "__main__":
    sys.exit(BENCHMARK.main())
