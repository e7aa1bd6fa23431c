"""Report: the tables a person reads."""

from __future__ import annotations

from rich.console import Console

from benchmarks.checkpoints.report import milliseconds
from benchmarks.lifecycle.report import print_measure as print_table
from benchmarks.server.report import Column
from benchmarks.server.results import Results

TITLES = {"save": "Saving until durable", "load": "Loading from disk", "step": "Full fine-tuning"}
COLUMNS: dict[str, tuple[Column, ...]] = {
    "save": (
        Column("seconds", "until durable", milliseconds, judged=True),
        Column("blocked", "training was blocked for", milliseconds),
    ),
    "load": (Column("seconds", "until restored", milliseconds, judged=True),),
    "step": (Column("seconds", "a step", milliseconds, judged=True),),
}


def print_measure(console: Console, results: Results, measure: str) -> None:
    print_table(console, results, measure, titles=TITLES, columns=COLUMNS)
