"""Report: the tables a person reads."""

from __future__ import annotations

from rich.console import Console

from benchmarks.checkpoints.report import milliseconds
from benchmarks.lifecycle.report import print_measure as print_table
from benchmarks.recovery.report import percent
from benchmarks.server.report import Column
from benchmarks.server.results import Results


def number(value: float) -> str:
    return f"{value:.0f}"


TITLES = {
    "walk": "Finding the one checkpoint",
    "saving": "Saving until durable",
    "forward": "Restoring",
    "attempts": "Attempts",
}
COLUMNS: dict[str, tuple[Column, ...]] = {
    "walk": (
        Column("seconds", "until restored", milliseconds, judged=True),
        Column("requests", "requests", number),
        Column("winner", "and for the winner", number),
    ),
    "saving": (
        Column("seconds", "each", milliseconds, judged=True),
        Column("added", "added to it", milliseconds),
        Column("share", "of it", percent),
    ),
    "attempts": (
        Column("requests", "requests each, besides files", number),
        Column("most", "at most", number),
        Column("states", "states on the store", number),
    ),
    "forward": (
        Column("seconds", "each", milliseconds, judged=True),
        Column("requests", "requests", number),
    ),
}


def print_measure(console: Console, results: Results, measure: str) -> None:
    print_table(console, results, measure, titles=TITLES, columns=COLUMNS)
