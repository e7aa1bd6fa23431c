"""Aims: the figures that a measure promises, each with its bound; and what a run found of them.

The value of an aim is a function of the rows of its measure. ``median``, ``largest``, ``ratio`` and ``paired_ratio``
make the usual ones. A value is ``None`` where something that it needs did not run; then the aim is missed.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, Literal

from benchmarks.harness.rounds import Rows
from benchmarks.harness.units import Show

Value = Callable[[Rows], float | None]
Kind = Literal["at most", "at least"]


class Counts(Enum):
    """In which runs an aim that is not reached fails the run. One that could not be measured fails every run."""

    ALWAYS = "in full and quick runs"
    FULL = "in full runs; a quick run shows it with a ~"
    FULL_ONLY = "in full runs; a quick run does not measure it"
    NEVER = "in no run: it is shown with a ~"

    def in_run(self, *, quick: bool) -> bool:
        return self is Counts.ALWAYS or (self is not Counts.NEVER and not quick)


@dataclass(frozen=True, slots=True)
class Aim:
    title: str
    value: Value
    kind: Kind
    bound: float | Value
    show: Show
    counts: Counts | None  # None: as the measure


def at_most(title: str, value: Value, bound: float | Value, show: Show, *, counts: Counts | None = None) -> Aim:
    return Aim(title, value, "at most", bound, show, counts)


def at_least(title: str, value: Value, bound: float | Value, show: Show, *, counts: Counts | None = None) -> Aim:
    return Aim(title, value, "at least", bound, show, counts)


def median(row: str, metric: str) -> Value:
    return lambda rows: _median(rows, row, metric)


def largest(row: str, metric: str) -> Value:
    """The largest sample of all rounds."""

    def value(rows: Rows) -> float | None:
        spread = rows[row].spread(metric) if row in rows else None
        return None if spread is None else spread[1]

    return value


def ratio(metric: str, above: str, below: str) -> Value:
    """The median of one row against that of another."""
    return lambda rows: divide(_median(rows, above, metric), _median(rows, below, metric))


def paired_ratio(metric: str, above: str, below: str, *, group: int | None = None) -> Value:
    """The median of the ratios of each round: what slows down a whole round cancels out.

    With ``group``, every ``group`` rounds were made with processes of their own: the geometric mean of the groups'
    medians. So an advantage that one group gives to one row cancels out where another group gives it to the other.
    """

    def value(rows: Rows) -> float | None:
        if _median(rows, above, metric) is None or not _median(rows, below, metric):
            return None
        ratios = [a / b for a, b in zip(rows[above].samples[metric], rows[below].samples[metric], strict=True)]
        size = group or len(ratios)
        medians = [statistics.median(ratios[start : start + size]) for start in range(0, len(ratios), size)]
        return statistics.geometric_mean(medians)

    return value


def divide(above: float | None, below: float | None) -> float | None:
    return None if above is None or not below else above / below


def _median(rows: Rows, row: str, metric: str) -> float | None:
    return rows[row].median(metric) if row in rows else None


@dataclass(frozen=True, slots=True)
class Figure:
    """What a run found of an aim."""

    measure: str
    case: str
    title: str
    kind: Kind
    bound: float
    value: float | None  # None: something that it needs did not run
    show: Show
    counted: bool  # False: shown, but this run cannot decide it

    @property
    def reached(self) -> bool:
        if self.value is None:
            return False
        return self.value <= self.bound if self.kind == "at most" else self.value >= self.bound

    @property
    def missed(self) -> bool:
        """A figure that could not be measured is missed in every run."""
        return self.value is None or (self.counted and not self.reached)

    @property
    def measured(self) -> str:
        return "not measured" if self.value is None else self.show(self.value)

    @property
    def sentence(self) -> str:
        label = f"{self.measure} {self.case}".strip()
        return f"{self.title} [{label}]: {self.measured}, wanted {self.kind} {self.show(self.bound)}"

    def as_json(self) -> dict[str, Any]:  # Any: JSON
        return {
            "measure": self.measure,
            **({"state": self.case} if self.case else {}),
            "title": self.title,
            "wanted": f"{self.kind} {self.show(self.bound)}",
            "bound": self.bound,
            "value": self.value,
            "reached": self.reached,
            "counted": self.counted,
        }


def judge(aim: Aim, rows: Rows, *, measure: str, case: str, is_counted: bool) -> Figure:
    """``rows`` is empty where the measure failed."""
    bound = aim.bound if isinstance(aim.bound, int | float) else aim.bound(rows)
    if bound is None:
        raise ValueError(f"the bound of {aim.title!r} must not depend on what could not be measured")
    return Figure(
        measure=measure,
        case=case,
        title=aim.title,
        kind=aim.kind,
        bound=bound,
        value=aim.value(rows),
        show=aim.show,
        counted=is_counted,
    )
