"""Step rows: joins the points of a run that belong to one optimizer step to one row of a table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from chockstone.cli.output.formatting import printable, shorten
from chockstone.cli.remote.client import Json

SERVER_SERIES: Final = ("loss", "learning_rate", "grad_norm", "tokens", "seconds")
_SUMMED: Final = ("tokens", "seconds")
_TITLES: Final = {"learning_rate": "LR", "grad_norm": "GRAD NORM"}
_MAX_REPORTED: Final = 3  # series of clients in the table, which has 80 columns


@dataclass(slots=True)
class StepRow:
    """The numbers of one optimizer step: sums of tokens and seconds, means of the rest."""

    step: int
    totals: dict[str, float] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)

    def add(self, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self.totals[name] = self.totals.get(name, 0.0) + value
            self.counts[name] = self.counts.get(name, 0) + 1

    def get(self, name: str) -> float | None:
        if name not in self.totals:
            return None
        return self.totals[name] if name in _SUMMED else self.totals[name] / self.counts[name]

    def cells(self, names: Sequence[str]) -> tuple[str, ...]:
        return (f"{self.step:,}", *(_cell(name, self.get(name)) for name in names))


def step_of(point: Json) -> int:
    """The optimizer step that a point belongs to. A pass belongs to the step that applies its gradient."""
    is_pass = point["source"] == "server" and "loss" in point["values"] and point.get("count", 1) == 1
    return int(point["step"]) + (1 if is_pass else 0)


def is_step_end(point: Json) -> bool:
    """Whether the point is that of an optimizer step."""
    return point["source"] == "server" and "loss" not in point["values"]


def join_steps(points: Iterable[Json]) -> list[StepRow]:
    """A row for each optimizer step, oldest first."""
    rows: dict[int, StepRow] = {}
    for point in points:
        step = step_of(point)
        rows.setdefault(step, StepRow(step)).add(point["values"])
    return [rows[step] for step in sorted(rows)]


def choose_columns(points: Iterable[Json], names: Sequence[str] | None, *, known: Sequence[str] = ()) -> list[str]:
    """The series to show: ``names``, or those of the server and the first ones that clients reported.

    ``known``: those that are shown already.
    """
    if names is not None:
        return list(names)
    reported = [name for point in points if point["source"] == "client" for name in point["values"]]
    columns = list(dict.fromkeys([*(known or SERVER_SERIES), *reported]))
    return columns[: len(SERVER_SERIES) + _MAX_REPORTED]


def titles(names: Iterable[str]) -> tuple[str, ...]:
    return ("STEP", *(_TITLES.get(name) or shorten(printable(name), 20).upper() for name in names))


def _cell(name: str, value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if name == "tokens" else f"{value:.4g}"
