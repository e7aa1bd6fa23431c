"""Report: the tables a person reads."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from benchmarks.checkpoints.report import milliseconds
from benchmarks.checkpoints.rounds import Series
from benchmarks.server.report import Column, megabytes, rate
from benchmarks.server.results import Results


def megabytes_per_second(bytes_per_second: float) -> str:
    return f"{bytes_per_second / 1e6:,.0f} MB/s"


TITLES = {
    "listing": "Listing",
    "deleting": "Deleting in bulk",
    "download": "Downloading",
    "saving": "Saving until durable",
}
COLUMNS: dict[str, tuple[Column, ...]] = {
    "listing": (Column("seconds", "each", milliseconds, judged=True),),
    "deleting": (Column("per_second", "a second", rate, judged=True),),
    "download": (
        Column("bytes_per_second", "rate", megabytes_per_second, judged=True),
        Column("grown_bytes", "memory grown", megabytes),
    ),
    "saving": (Column("seconds", "each", milliseconds, judged=True),),
}


def print_measure(
    console: Console,
    results: Results,
    measure: str,
    *,
    titles: Mapping[str, str] = TITLES,
    columns: Mapping[str, tuple[Column, ...]] = COLUMNS,
) -> None:
    if measure in results.failures:
        console.print(f"[red]{titles[measure]}: not measured[/]\n{escape(results.failures[measure])}")
        return
    mark = "~ quick: " if results.quick else ""
    table = Table(title=f"{mark}{titles[measure]}: {results.titles[measure]}", title_justify="left")
    table.add_column("")
    for column in columns[measure]:
        table.add_column(column.heading, justify="right")
        if column.judged:
            table.add_column("min – max", justify="right")
    table.add_column("")
    for name, series in results.measured[measure].items():
        cells = [cell for column in columns[measure] for cell in _cells(series, column)]
        table.add_row(escape(name), *cells, _remark(series))
    console.print(table)


def _cells(series: Series, column: Column) -> list[str]:
    value, spread = series.median(column.metric), series.spread(column.metric)
    cells = ["" if value is None else column.show(value)]
    if column.judged:
        cells.append("" if spread is None else f"{column.show(spread[0])} – {column.show(spread[1])}")
    return cells


def _remark(series: Series) -> str:
    return f"[yellow]not run: {escape(series.failure)}[/]" if series.failure is not None else escape(series.note)
