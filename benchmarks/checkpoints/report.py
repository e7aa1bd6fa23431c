"""Report: the tables a person reads."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from benchmarks.checkpoints import ours, restoring, saving, stalling
from benchmarks.checkpoints.figures import Figure, show
from benchmarks.checkpoints.results import Measure, Results
from benchmarks.checkpoints.rounds import Series

TITLES: dict[Measure, str] = {
    "save": "Durable save",
    "stall": "save() blocks the caller",
    "restore": "Restore from a cold file into existing tensors (ours verified, peers not)",
}
LIMITS: dict[Measure, str] = {"save": saving.LIMIT, "stall": stalling.LIMIT, "restore": restoring.LIMIT}


def print_measure(console: Console, results: Results, measure: Measure, state: str) -> None:
    rows = results.measured[measure, state]
    if measure in TITLES:
        console.print(_timing_table(results, measure, state, rows))
    elif measure == "memory":
        console.print(_memory_table(results, state, rows))
    else:
        console.print(_bytes_table(results, state, rows))


def print_figures(console: Console, figures: list[Figure], *, quick: bool) -> None:
    title = "Figures" + (" (quick run: ~ marks a figure that this size cannot decide)" if quick else "")
    table = Table(title=title, title_justify="left")
    for heading in ("measure", "state", "figure"):
        table.add_column(heading)
    for heading in ("wanted", "measured"):
        table.add_column(heading, justify="right")
    table.add_column("")
    for figure in figures:
        sign = "≤" if figure.kind == "at most" else "≥"
        measured = "—" if figure.value is None else show(figure.value, figure.unit)
        table.add_row(
            figure.measure,
            figure.state,
            figure.title,
            f"{sign} {show(figure.bound, figure.unit)}",
            measured if figure.counted else f"~ {measured}",
            _verdict(figure),
        )
    console.print(table)


def milliseconds(seconds: float) -> str:
    if seconds >= 10:
        return f"{seconds:.1f} s"
    return f"{seconds * 1e3:.0f} ms" if seconds >= 0.1 else f"{seconds * 1e3:.1f} ms"


def _verdict(figure: Figure) -> str:
    if figure.value is None:
        return "[yellow]not measured[/]"
    if figure.reached:
        return "[green]reached[/]"
    return "[red]MISSED[/]" if figure.counted else "[yellow]short[/]"


def _timing_table(results: Results, measure: Measure, state: str, rows: dict[str, Series]) -> Table:
    facts = results.states[state]
    mark = "~ quick: " if results.quick and state == "F" else ""
    table = Table(
        title=f"{mark}{TITLES[measure]}: {state}, {facts.title}, {facts.size_bytes / 1e6:.0f} MB",
        title_justify="left",
    )
    table.add_column("")
    for heading in ("median", "min – max", "× limit", "× ours"):
        table.add_column(heading, justify="right")
    if measure == "stall":
        table.add_column("durable after", justify="right")
        table.add_column("× ours", justify="right")
    table.add_column("")

    limit = results.median(measure, state, LIMITS[measure])
    mine = results.median(measure, state, ours.NAME)
    my_durable = results.median(measure, state, ours.NAME, "durable")
    for name, series in rows.items():
        seconds, spread = series.median("seconds"), series.spread("seconds")
        cells = [
            _timed(seconds),
            "—" if spread is None else f"{milliseconds(spread[0])} – {milliseconds(spread[1])}",
            _times(seconds, limit),
            _times(seconds, mine),
        ]
        if measure == "stall":
            durable = series.median("durable")
            cells += [_timed(durable), _times(durable, my_durable)]
        table.add_row(escape(name), *cells, _remark(series), style="bold" if name == ours.NAME else None)
    return table


def _memory_table(results: Results, state: str, rows: dict[str, Series]) -> Table:
    size_bytes = results.states[state].size_bytes
    table = Table(title=f"Extra host memory of a save in the background: {state}", title_justify="left")
    table.add_column("")
    table.add_column("peak above before", justify="right")
    table.add_column("× state", justify="right")
    table.add_column("")
    for name, series in rows.items():
        extra = series.median("extra_bytes")
        shown = "—" if extra is None else f"{extra / 1e6:.0f} MB"
        table.add_row(escape(name), shown, _times(extra, size_bytes), _remark(series))
    return table


def _bytes_table(results: Results, state: str, rows: dict[str, Series]) -> Table:
    size_bytes = results.states[state].size_bytes
    table = Table(title=f"Bytes of one save: {state}, {size_bytes:,} bytes of state", title_justify="left")
    table.add_column("")
    for heading in ("written", "beyond the state", "left on disk"):
        table.add_column(heading, justify="right")
    table.add_column("")
    for name, series in rows.items():
        written, left = series.median("written_bytes"), series.median("file_bytes")
        table.add_row(
            escape(name),
            "—" if written is None else f"{written:,.0f}",
            "—" if written is None else f"{100 * (written / size_bytes - 1):.2f} %",
            "—" if left is None else f"{left:,.0f}",
            _remark(series),
        )
    return table


def print_scaling(console: Console, results: Results) -> None:
    mark = "~ quick: " if results.quick else ""
    table = Table(title=f"{mark}Scaling of {ours.NAME}", title_justify="left")
    table.add_column("")
    for heading in ("durable save", "per MB", "verified restore", "per MB"):
        table.add_column(heading, justify="right")
    table.add_column("")
    for point in results.scaling:
        megabytes = point.at / 1e6 if point.axis == "size" else 100.0
        title = f"{megabytes:,.0f} MB" if point.axis == "size" else f"{point.at:,} tensors in 100 MB"
        save, restore = point.series.median("save"), point.series.median("restore")
        table.add_row(
            title,
            _timed(save),
            _timed(None if save is None else save / megabytes),
            _timed(restore),
            _timed(None if restore is None else restore / megabytes),
            _remark(point.series),
        )
    console.print(table)


def _timed(seconds: float | None) -> str:
    if seconds is None:
        return "—"
    return milliseconds(seconds) if seconds >= 1e-3 else f"{seconds * 1e6:.0f} µs"


def _times(value: float | None, base: float | None) -> str:
    return "—" if value is None or base is None else f"{value / base:.2f}"


def _remark(series: Series) -> str:
    return f"[yellow]not run: {escape(series.failure)}[/]" if series.failure is not None else escape(series.note)
