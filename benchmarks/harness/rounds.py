"""Rounds: every contestant takes one turn per round, so that noise on the machine affects all of them alike.

The first round is a warm-up and is not counted: it fills buffers, pools and caches. The order rotates from round to
round, so that no contestant always runs after the same other one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from benchmarks.harness.free_memory import FreeMemory

Metrics = dict[str, float]
Turn = Callable[[], Metrics]
"""One turn of one contestant: does the work and returns what was measured of it."""


@dataclass(slots=True)
class Series:
    """What was measured of one contestant: metric name -> one value per counted round."""

    samples: dict[str, list[float]] = field(default_factory=dict)
    failure: str | None = None  # why it did not run, or stopped running
    note: str = ""

    def add(self, metrics: Metrics) -> None:
        for metric, value in metrics.items():
            self.samples.setdefault(metric, []).append(value)

    def median(self, metric: str) -> float | None:
        values = self.samples.get(metric)
        return median(values) if values and self.failure is None else None

    def spread(self, metric: str) -> tuple[float, float] | None:
        """The smallest and the largest sample."""
        values = self.samples.get(metric)
        return (min(values), max(values)) if values and self.failure is None else None

    def as_json(self) -> dict[str, Any]:  # Any: JSON
        if self.failure is not None:
            return {"not_run": self.failure}
        metrics = {name: {"median": self.median(name), "samples": values} for name, values in self.samples.items()}
        return {"metrics": metrics} | ({"note": self.note} if self.note else {})


Rows = dict[str, Series]
"""What one measure found: the name of a contestant -> its series."""


def run_rounds(
    contestants: Mapping[str, Turn],
    *,
    repeats: int,
    memory: FreeMemory,
    say: Callable[[str], None],
    check: Callable[[str], str | None] = lambda _name: None,
) -> Rows:
    """Measure all contestants. One that raises is left out of later rounds, and its series says why.

    ``check`` is called after each contestant's warm-up turn and returns what is wrong with its result, if anything.
    """
    rows = {name: Series() for name in contestants}
    names = list(contestants)
    for number in range(repeats + 1):
        shift = number % len(names) if names else 0
        for name in names[shift:] + names[:shift]:
            if rows[name].failure is not None:
                continue
            say(f"{'warm-up' if number == 0 else f'round {number} of {repeats}'}: {name}")
            try:
                metrics = take_turn(contestants[name], memory)
            except Exception as error:  # recorded: reported as "not run" with its reason
                rows[name].failure = reason_of(error)
                continue
            if number == 0:
                rows[name].failure = check(name)
            else:
                rows[name].add(metrics)
    return rows


def extend(rows: Rows, more: Rows) -> None:
    """Append the samples of further rounds. A contestant that failed once has failed."""
    for name, series in more.items():
        into = rows.setdefault(name, Series())
        into.failure = into.failure or series.failure
        for metric, values in series.samples.items():
            into.samples.setdefault(metric, []).extend(values)


def take_turn(turn: Turn, memory: FreeMemory) -> Metrics:
    memory.prepare()
    try:
        return turn()
    finally:
        memory.recover()


def compare_by_round(rows: Rows, name: str, base: str, *, metric: str = "seconds") -> None:
    """Add to ``name`` what it has more of ``metric`` than ``base`` in the same round: ``added``, and ``share`` of it.

    What slows down a whole round cancels out.
    """
    pairs = list(zip(rows[name].samples.get(metric, []), rows[base].samples.get(metric, []), strict=False))
    rows[name].note = f"against: {base}"
    rows[name].samples |= {"added": [a - b for a, b in pairs], "share": [a / b - 1 for a, b in pairs]}


def reason_of(error: Exception) -> str:
    first_line = str(error).strip().splitlines()[0] if str(error).strip() else "no message"
    return f"{type(error).__name__}: {first_line[:200]}"
