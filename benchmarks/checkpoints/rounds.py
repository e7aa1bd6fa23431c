"""Rounds: every contestant once per round, so that noise on the machine hits all of them alike.

The first round is not counted. It warms buffers, pools and caches for everybody. The order rotates from round
to round, so nobody always runs after the same neighbour.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from statistics import median

from benchmarks.checkpoints.free_memory import FreeMemory

Metrics = dict[str, float]
Action = Callable[[], Metrics]


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
        values = self.samples.get(metric)
        return (min(values), max(values)) if values and self.failure is None else None


def run_rounds(
    actions: Mapping[str, Action],
    *,
    repeats: int,
    memory: FreeMemory,
    say: Callable[[str], None],
    check: Callable[[str], str | None] = lambda _name: None,
) -> dict[str, Series]:
    """Measure all actions. One that raises is out of later rounds and its series says why.

    ``check`` is asked after each action's warm-up and returns what is wrong with its result, if anything.
    """
    series = {name: Series() for name in actions}
    names = list(actions)
    for number in range(repeats + 1):
        shift = number % len(names) if names else 0
        for name in names[shift:] + names[:shift]:
            if series[name].failure is not None:
                continue
            say(f"{'warm-up' if number == 0 else f'round {number} of {repeats}'}: {name}")
            try:
                metrics = take_turn(actions[name], memory)
            except Exception as error:  # recorded: reported as "not run" with its reason
                series[name].failure = _reason(error)
                continue
            if number == 0:
                series[name].failure = check(name)
            else:
                series[name].add(metrics)
    return series


def take_turn(action: Action, memory: FreeMemory) -> Metrics:
    memory.prepare()
    try:
        return action()
    finally:
        memory.recover()


def _reason(error: Exception) -> str:
    first_line = str(error).strip().splitlines()[0] if str(error).strip() else "no message"
    return f"{type(error).__name__}: {first_line[:200]}"
