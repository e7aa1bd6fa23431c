"""Results: everything one run of the benchmark measured, and its form as JSON."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from benchmarks.checkpoints.free_memory import Temperature
from benchmarks.checkpoints.rounds import Series
from benchmarks.checkpoints.scaling import Point
from benchmarks.checkpoints.states import State
from benchmarks.environment import series_json

Measure = Literal["save", "stall", "restore", "bytes", "memory"]

PACKAGES = (
    "torch",
    "safetensors",
    "torchsnapshot",
    "orbax-checkpoint",
    "jax",
    "numpy",
    "xxhash",
    "chockstone",
)


@dataclass(frozen=True, slots=True)
class StateFacts:
    title: str
    size_bytes: int
    tensor_count: int

    @classmethod
    def of(cls, state: State) -> StateFacts:
        return cls(state.title, state.size_bytes, state.tensor_count)


@dataclass(slots=True)
class Results:
    quick: bool
    temperature: Temperature  # of the free memory that contestants found
    environment: dict[str, str]
    states: dict[str, StateFacts] = field(default_factory=dict)
    measured: dict[tuple[Measure, str], dict[str, Series]] = field(default_factory=dict)
    scaling: list[Point] = field(default_factory=list)

    def median(self, measure: Measure, state: str, name: str, metric: str = "seconds") -> float | None:
        series = self.measured.get((measure, state), {}).get(name)
        return None if series is None else series.median(metric)

    def medians(
        self, measure: Measure, state: str, metric: str = "seconds", *, without: Iterable[str]
    ) -> dict[str, float]:
        """All contestants that have this metric, save the named ones."""
        names = self.measured.get((measure, state), {}).keys() - set(without)
        found = {name: self.median(measure, state, name, metric) for name in names}
        return {name: value for name, value in found.items() if value is not None}

    def as_json(self) -> dict[str, Any]:  # Any: JSON
        measures: dict[str, dict[str, Any]] = {}
        for (measure, state), rows in self.measured.items():
            measures.setdefault(measure, {})[state] = {name: series_json(series) for name, series in rows.items()}
        return {
            "quick": self.quick,
            "free_memory": self.temperature,
            "environment": self.environment,
            "states": {
                name: {
                    "title": facts.title,
                    "size_bytes": facts.size_bytes,
                    "tensor_count": facts.tensor_count,
                }
                for name, facts in self.states.items()
            },
            "measures": measures,
            "scaling": [{"axis": point.axis, "at": point.at, **series_json(point.series)} for point in self.scaling],
        }
