"""Report: the tables a person reads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from benchmarks.checkpoints.report import milliseconds
from benchmarks.checkpoints.rounds import Series
from benchmarks.server.figures import Figure, show
from benchmarks.server.results import Results


@dataclass(frozen=True, slots=True)
class Column:
    metric: str
    heading: str
    show: Callable[[float], str]
    judged: bool = False  # shown with its spread and as a ratio, as what is promised must be


def rate(tokens_per_second: float) -> str:
    return f"{tokens_per_second:,.0f}"


def megabytes(size_bytes: float) -> str:
    return f"{size_bytes / 1e6:,.1f} MB"


_RATES = (Column("tokens_per_second", "tokens/s", rate, judged=True),)
TITLES = {
    "start": "Starting, from the start of the process",
    "memory": "Memory of the worker (PSS)",
    "overhead": "Operations through the SDK",
    "training": "Training",
    "sharing": "Runs at once",
    "sampling": "Sampling",
    "small-sampling": "Sampling from a small model",
    "answering": "API answers to another client",
    "neighbour": "Beside a neighbour that takes half of the cores",
}
COLUMNS: dict[str, tuple[Column, ...]] = {
    "start": (
        Column("answers", "API answers", milliseconds),
        Column("ready", "run ready", milliseconds),
        Column("stepped", "first step", milliseconds, judged=True),
    ),
    "memory": (Column("bytes", "bytes", megabytes, judged=True),),
    "overhead": (Column("seconds", "each", milliseconds, judged=True),),
    "training": _RATES,
    "sharing": _RATES,
    "sampling": _RATES,
    "small-sampling": _RATES,
    "neighbour": _RATES,
    "answering": (
        Column("p50", "p50", milliseconds),
        Column("p99", "p99", milliseconds),
        Column("p99_all", "p99, stalls in full", milliseconds, judged=True),
        Column("slowest", "slowest", milliseconds),
        Column("seconds", "lasting", milliseconds),
    ),
}


def print_measure(console: Console, results: Results, measure: str) -> None:
    if measure in results.failures:
        console.print(f"[red]{TITLES[measure]}: not measured[/]\n{escape(results.failures[measure])}")
        return
    mark = "~ quick: " if results.quick else ""
    table = Table(title=f"{mark}{TITLES[measure]}: {results.titles[measure]}", title_justify="left")
    table.add_column("")
    for column in COLUMNS[measure]:
        table.add_column(column.heading, justify="right")
        if column.judged:
            table.add_column("min – max", justify="right")
            table.add_column("× first row", justify="right")
    table.add_column("")
    rows = results.measured[measure]
    first = next(iter(rows.values()))
    for name, series in rows.items():
        cells = [cell for column in COLUMNS[measure] for cell in _cells(series, column, first=first)]
        table.add_row(escape(name), *cells, _remark(series))
    console.print(table)


def print_figures(console: Console, figures: list[Figure], *, quick: bool) -> None:
    title = "Figures" + (" (quick run: ~ marks a figure that this size cannot decide)" if quick else "")
    table = Table(title=title, title_justify="left")
    table.add_column("measure")
    table.add_column("figure")
    table.add_column("wanted", justify="right")
    table.add_column("measured", justify="right")
    table.add_column("")
    for figure in figures:
        sign = "≤" if figure.kind == "at most" else "≥"
        measured = "—" if figure.value is None else show(figure.value, figure.unit)
        table.add_row(
            figure.measure,
            figure.title,
            f"{sign} {show(figure.bound, figure.unit)}",
            measured if figure.counted else f"~ {measured}",
            _verdict(figure),
        )
    console.print(table)


def _verdict(figure: Figure) -> str:
    if figure.value is None:
        return "[red]NOT MEASURED[/]"
    if figure.reached:
        return "[green]reached[/]"
    return "[red]MISSED[/]" if figure.counted else "[yellow]short[/]"


def _cells(series: Series, column: Column, *, first: Series) -> list[str]:
    value, spread, base = series.median(column.metric), series.spread(column.metric), first.median(column.metric)
    cells = ["—" if value is None else column.show(value)]
    if column.judged:
        cells.append("" if spread is None else f"{column.show(spread[0])} – {column.show(spread[1])}")
        cells.append("—" if value is None or not base else f"{value / base:.2f}")
    return cells


def _remark(series: Series) -> str:
    return f"[yellow]not run: {escape(series.failure)}[/]" if series.failure is not None else escape(series.note)
