"""Report: the tables a person reads."""

from __future__ import annotations

from rich.console import Console

from benchmarks.checkpoints.report import milliseconds
from benchmarks.lifecycle.report import print_measure as print_table
from benchmarks.server.report import Column, rate
from benchmarks.server.results import Results


def percent(share: float) -> str:
    return f"{share * 1e2:.1f} %"


_TOKENS = (
    Column("share", "tokens/s, of those without", percent, judged=True),
    Column("during", "during saves", rate),
    Column("outside", "without", rate),
    Column("seconds", "a save takes", milliseconds),
    Column("cpu", "CPU of it", milliseconds),
    Column("lost", "generation lost", milliseconds),
)
_STALLS = (
    Column("p99", "p99 of lateness", milliseconds, judged=True),
    Column("max", "latest beat", milliseconds, judged=True),
    Column("elsewhere", "of a bystander", milliseconds, judged=True),
    Column("held", "longest callback", milliseconds),
    Column("seconds", "each takes", milliseconds),
)
TITLES = {
    "tokens-L": "Generating while an L-like state is saved",
    "tokens-F": "Generating while an F-like state is saved",
    "timeline": "Generating around one save",
    "trainer-loop": "Lateness of the trainer's event loop",
    "server-loop": "Lateness of the server's event loop",
    "one-step-off": "Training",
}
COLUMNS: dict[str, tuple[Column, ...]] = {
    "tokens-L": _TOKENS,
    "tokens-F": _TOKENS,
    "timeline": (
        Column("tokens_per_second", "tokens/s", rate, judged=True),
        Column("seconds", "the save takes", milliseconds),
    ),
    "trainer-loop": _STALLS,
    "server-loop": tuple(column for column in _STALLS if column.metric != "held"),
    "one-step-off": (
        Column("seconds", "a step", milliseconds, judged=True),
        Column("staleness", "staleness", "{:.2f}".format),
    ),
}


def print_measure(console: Console, results: Results, measure: str) -> None:
    print_table(console, results, measure, titles=TITLES, columns=COLUMNS)
