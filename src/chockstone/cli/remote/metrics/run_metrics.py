"""Prints the metrics of a run: its last steps as a table, all points as CSV or JSON, or new points as they come."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any, Final
from urllib.parse import quote

from chockstone.cli.output.formatting import format_count, printable
from chockstone.cli.output.terminal import print_json, print_line, print_stderr, print_table
from chockstone.cli.remote.addresses import run_route
from chockstone.cli.remote.client import Json, Server
from chockstone.cli.remote.metrics.event_stream import follow
from chockstone.cli.remote.metrics.step_rows import StepRow, choose_columns, is_step_end, join_steps, step_of, titles

_PAGE: Final = 10_000  # as many as the server gives at a time
_COLUMN: Final = 10  # characters


def print_metrics(server: Server, run_id: str, *, names: Sequence[str] | None, last: int, as_json: bool) -> None:
    points = _all_points(server, run_id, names)
    if as_json:
        print_json({"run_id": run_id, "points": points})
        return
    if not points:
        wanted = f" named {', '.join(map(printable, names))}" if names else ""
        print_line(f"run {printable(run_id)} has no metrics{wanted} yet")
        return
    columns, rows = choose_columns(points, names), join_steps(points)
    headers = titles(columns)
    print_table(headers, [row.cells(columns) for row in rows[-last:]], right=headers)
    if len(rows) > last:
        print_line(f"the last {last} of {format_count(len(rows), 'row')}; --csv prints all points")


def print_csv(server: Server, run_id: str, *, names: Sequence[str] | None) -> None:
    query = f"format=csv&limit={_PAGE}{_names_query(names)}"
    with server.open(f"{run_route(run_id)}/metrics?{query}") as answer:
        for line in answer:
            sys.stdout.write(line.decode())


def follow_metrics(server: Server, run_id: str, *, names: Sequence[str] | None, last: int, as_json: bool) -> None:
    """Print the last steps, and then each step as it ends, until Ctrl-C."""
    points = _all_points(server, run_id, names)
    cursor = points[-1]["position"] if points else 0
    writer = _JsonLines() if as_json else _Rows(names, last)
    writer.begin(points)
    path = f"{run_route(run_id)}/metrics/stream?{_names_query(names).lstrip('&')}"

    def tell(reason: str) -> None:
        print_stderr(f"{reason}; connecting again")

    for event in follow(server, path, after=cursor, on_away=tell):
        writer.add(event.data)
        sys.stdout.flush()


class _JsonLines:
    """A line of JSON for each point."""

    def begin(self, points: Iterable[Json]) -> None:
        self.add(points)

    def add(self, points: Iterable[Json]) -> None:
        for point in points:
            sys.stdout.write(json.dumps(point) + "\n")
        sys.stdout.flush()


class _Rows:
    """A row for each optimizer step. The headers are printed again when a client reports another series."""

    def __init__(self, names: Sequence[str] | None, last: int) -> None:
        self._names = names
        self._last = last
        self._columns: list[str] = []
        self._open: dict[int, StepRow] = {}  # steps that have not ended

    def begin(self, points: Sequence[Json]) -> None:
        self._choose_columns(points)
        for row in join_steps(points)[-self._last :]:
            print_line(self._line(row.cells(self._columns)))
        sys.stdout.flush()

    def _choose_columns(self, points: Iterable[Json]) -> None:
        wanted = choose_columns(points, self._names, known=self._columns)
        if wanted != self._columns:
            self._columns = wanted
            print_line(self._line(titles(self._columns)), style="bold")

    def add(self, points: Sequence[Json]) -> None:
        self._choose_columns(points)
        for point in points:
            step = step_of(point)
            row = self._open.setdefault(step, StepRow(step))
            row.add(point["values"])
            if is_step_end(point) or point["source"] == "client":
                del self._open[step]
                print_line(self._line(row.cells(self._columns)))

    def _line(self, cells: Iterable[str]) -> str:
        return "".join(cell.rjust(_COLUMN) for cell in cells).rstrip()


def _all_points(server: Server, run_id: str, names: Sequence[str] | None) -> list[Json]:
    points: list[Json] = []
    cursor, has_more = 0, True
    while has_more:
        query = f"after={cursor}&limit={_PAGE}{_names_query(names)}"
        page: dict[str, Any] = server.get(f"{run_route(run_id)}/metrics?{query}")
        points += page["points"]
        has_more = page["has_more"] and page["cursor"] > cursor
        cursor = page["cursor"]
    return points


def _names_query(names: Sequence[str] | None) -> str:
    return "" if names is None else f"&names={quote(','.join(names), safe=',')}"
