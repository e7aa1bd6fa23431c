"""Results: everything that one run of a benchmark measured, and its form as JSON."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from benchmarks.harness.aims import Counts, Figure, judge
from benchmarks.harness.free_memory import Temperature
from benchmarks.harness.measure import Measure, Setup
from benchmarks.harness.rounds import Rows


@dataclass(slots=True)
class Results:
    quick: bool
    threads: int
    temperature: Temperature | None  # of the free memory; None: not controlled
    environment: dict[str, str]
    titles: dict[str, str] = field(default_factory=dict)  # label of a measure -> what it was made on
    measured: dict[tuple[str, str], Rows] = field(default_factory=dict)  # by name and case
    failures: dict[str, str] = field(default_factory=dict)  # label of a measure that did not end -> its traceback

    def rows(self, measure: Measure[Setup]) -> Rows:
        """Empty where the measure failed or did not run."""
        return self.measured.get((measure.name, measure.case), {})

    def figures(self, measures: Iterable[Measure[Setup]]) -> list[Figure]:
        """Of all aims of these measures that a run of this size has."""
        found: list[Figure] = []
        for measure in measures:
            for aim in measure.aims:
                counts = measure.counts_of(aim)
                if not (self.quick and counts is Counts.FULL_ONLY):
                    is_counted = counts.in_run(quick=self.quick)
                    rows = self.rows(measure)
                    found.append(judge(aim, rows, measure=measure.name, case=measure.case, is_counted=is_counted))
        return found

    def as_json(self) -> dict[str, Any]:  # Any: JSON
        measures: dict[str, Any] = {}
        for (name, case), rows in self.measured.items():
            written = {row: series.as_json() for row, series in rows.items()}
            if case:
                measures.setdefault(name, {})[case] = written
            else:
                measures[name] = written
        return {
            "quick": self.quick,
            "threads": self.threads,
            **({} if self.temperature is None else {"free_memory": self.temperature}),
            "environment": self.environment,
            "titles": self.titles,
            "failures": self.failures,
            "measures": measures,
        }
