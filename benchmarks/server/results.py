"""Results: everything one run of the benchmark measured, and its form as JSON."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median
from typing import Any

from benchmarks.checkpoints.rounds import Series
from benchmarks.environment import series_json

PACKAGES = ("chockstone", "tinker", "torch", "transformers", "peft", "fastapi", "uvicorn")


@dataclass(slots=True)
class Results:
    quick: bool
    threads: int
    environment: dict[str, str]
    titles: dict[str, str] = field(default_factory=dict)  # what each measure was made on
    measured: dict[str, dict[str, Series]] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)  # measures that did not end

    def median(self, measure: str, row: str, metric: str) -> float | None:
        series = self.measured.get(measure, {}).get(row)
        return None if series is None else series.median(metric)

    def ratio(self, measure: str, metric: str, above: str, below: str) -> float | None:
        mine, theirs = self.median(measure, above, metric), self.median(measure, below, metric)
        return None if mine is None or not theirs else mine / theirs

    def paired_ratio(self, measure: str, metric: str, above: str, below: str) -> float | None:
        """The median of the ratios of each round: what slows down a whole round cancels out."""
        rows = self.measured.get(measure, {})
        if self.median(measure, above, metric) is None or not self.median(measure, below, metric):
            return None
        return median(a / b for a, b in zip(rows[above].samples[metric], rows[below].samples[metric], strict=True))

    def as_json(self) -> dict[str, Any]:  # Any: JSON
        return {
            "quick": self.quick,
            "threads": self.threads,
            "environment": self.environment,
            "titles": self.titles,
            "failures": self.failures,
            "measures": {
                measure: {row: series_json(series) for row, series in rows.items()}
                for measure, rows in self.measured.items()
            },
        }
