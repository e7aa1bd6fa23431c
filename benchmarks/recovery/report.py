"""Report: the tables a person reads."""

from __future__ import annotations

from rich.console import Console

from benchmarks.checkpoints.report import milliseconds
from benchmarks.lifecycle.report import print_measure as print_table
from benchmarks.server.report import Column, megabytes
from benchmarks.server.results import Results


def percent(share: float) -> str:
    return f"{share * 1e2:+.1f} %"


def seconds(value: float) -> str:
    return f"{value:.2f} s"


_STEPS = (
    Column("seconds", "a step", milliseconds),
    Column("added", "added to it", milliseconds),
    Column("share", "of it", percent, judged=True),
    Column("cpu", "API process, CPU", milliseconds),
)
TITLES = {
    "journal": "What a step costs",
    "journal-large": "What a step of a larger model costs",
    "recovery": "Recovery, from the start of the server until the run answers",
    "parked": "Parked runs, from the start of the server",
}
COLUMNS: dict[str, tuple[Column, ...]] = {
    "journal": _STEPS,
    "journal-large": _STEPS,
    "recovery": (
        Column("seconds", "all of it", seconds, judged=True),
        Column("answers", "API answers", seconds),
        Column("replay", "replay", seconds),
        Column("besides", "besides that", seconds),
    ),
    "parked": (
        Column("answers", "API answers", seconds, judged=True),
        Column("memory", "memory", megabytes, judged=True),
        Column("woken", "a parked run answers", seconds),
    ),
}


def print_measure(console: Console, results: Results, measure: str) -> None:
    print_table(console, results, measure, titles=TITLES, columns=COLUMNS)
