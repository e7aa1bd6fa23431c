"""Measures: the declaration of one thing that a benchmark measures, and of the columns of its table."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from matplotlib.axes import Axes

from benchmarks.harness.aims import Aim, Counts
from benchmarks.harness.context import Context
from benchmarks.harness.rounds import Rows
from benchmarks.harness.units import Show

Setup = TypeVar("Setup")


@dataclass(frozen=True, slots=True)
class Against:
    """A column of multiples: each row against a row that serves as the base."""

    heading: str
    base_of: Callable[[str], str]  # name of a row -> name of its base


def against(heading: str, base: str) -> Against:
    """All rows against the same one."""
    return Against(heading, lambda _row: base)


@dataclass(frozen=True, slots=True)
class Column:
    metric: str
    heading: str
    show: Show
    spread: bool = False  # whether the smallest and the largest sample are shown, too
    against: Sequence[Against] = ()


class Panel(Protocol):
    """How a measure is drawn."""

    def draw(self, axes: Axes, rows: Rows, columns: Sequence[Column], *, ours: Collection[str]) -> None: ...


@dataclass(frozen=True, slots=True)
class Measure(Generic[Setup]):
    name: str  # on the command line, in tables and in JSON
    title: str
    run: Callable[[Context, Setup], Rows]
    columns: Sequence[Column]
    aims: Sequence[Aim] = ()
    counts: Counts = Counts.ALWAYS  # for aims that do not say it themselves
    ours: Collection[str] = ()  # the contestants that stand out in tables and plots
    panel: Panel | None = None  # None: not drawn
    case: str = ""  # where one measure is made on several states: which
    option: str = ""  # the word of --only that chooses it, where that is not its name
    is_in_quick_runs: bool = True

    @property
    def label(self) -> str:
        return f"{self.name} {self.case}".strip()

    @property
    def chosen_by(self) -> str:
        return self.option or self.name

    def decides(self, *, quick: bool) -> bool:
        """Whether the size of this run is that of all of the measure's aims."""
        return not quick or all(self.counts_of(aim) in (Counts.ALWAYS, Counts.FULL_ONLY) for aim in self.aims)

    def counts_of(self, aim: Aim) -> Counts:
        return aim.counts or self.counts
