"""Report: the tables that a run prints."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from benchmarks.harness.aims import Figure, divide
from benchmarks.harness.measure import Column, Measure, Setup
from benchmarks.harness.results import Results
from benchmarks.harness.rounds import Rows

MISSING = "—"


def print_measure(console: Console, measure: Measure[Setup], results: Results) -> None:
    if measure.label in results.failures:
        console.print(f"[red]{measure.title}: not measured[/]\n{escape(results.failures[measure.label])}")
        return
    mark = "" if measure.decides(quick=results.quick) else "~ quick: "
    subject = results.titles.get(measure.label, "")
    table = Table(title=f"{mark}{measure.title}{': ' if subject else ''}{escape(subject)}", title_justify="left")
    table.add_column("")
    for column in measure.columns:
        for heading in (column.heading, *(["min – max"] if column.spread else [])):
            table.add_column(heading, justify="right")
        for multiple in column.against:
            table.add_column(f"× {multiple.heading}", justify="right")
    table.add_column("")
    rows = results.rows(measure)
    for name, series in rows.items():
        cells = [cell for column in measure.columns for cell in _cells(rows, name, column)]
        remark = escape(series.note) if series.failure is None else f"[yellow]not run: {escape(series.failure)}[/]"
        table.add_row(escape(name), *cells, remark, style="bold" if name in measure.ours else None)
    console.print(table)


def print_figures(console: Console, figures: Iterable[Figure], *, quick: bool) -> None:
    title = "Figures" + (" (quick run: ~ marks a figure that this size cannot decide)" if quick else "")
    table = Table(title=title, title_justify="left")
    table.add_column("measure")
    table.add_column("figure")
    table.add_column("wanted", justify="right")
    table.add_column("measured", justify="right")
    table.add_column("")
    for figure in figures:
        sign = "≤" if figure.kind == "at most" else "≥"
        measured = MISSING if figure.value is None else figure.measured
        table.add_row(
            f"{figure.measure} {figure.case}".strip(),
            figure.title,
            f"{sign} {figure.show(figure.bound)}",
            measured if figure.counted else f"~ {measured}",
            _verdict(figure),
        )
    console.print(table)


def _cells(rows: Rows, name: str, column: Column) -> list[str]:
    value, spread = rows[name].median(column.metric), rows[name].spread(column.metric)
    cells = [MISSING if value is None else column.show(value)]
    if column.spread:
        cells.append(MISSING if spread is None else f"{column.show(spread[0])} – {column.show(spread[1])}")
    for multiple in column.against:
        base = rows.get(multiple.base_of(name))
        times = None if base is None else divide(value, base.median(column.metric))
        cells.append(MISSING if times is None else f"{times:.2f}")
    return cells


def _verdict(figure: Figure) -> str:
    if figure.value is None:
        return "[red]NOT MEASURED[/]"
    if figure.reached:
        return "[green]reached[/]"
    return "[red]MISSED[/]" if figure.counted else "[yellow]short[/]"
