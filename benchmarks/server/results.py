"""Results: everything one run of the benchmark measured, and its form as JSON."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass, field
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from benchmarks.checkpoints.durability import filesystem_of
from benchmarks.checkpoints.rounds import Series

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

    def as_json(self) -> dict[str, Any]:  # Any: JSON
        return {
            "quick": self.quick,
            "threads": self.threads,
            "environment": self.environment,
            "titles": self.titles,
            "failures": self.failures,
            "measures": {
                measure: {row: _series_json(series) for row, series in rows.items()}
                for measure, rows in self.measured.items()
            },
        }


def describe_environment(directory: Path, *, now: datetime) -> dict[str, str]:
    return {
        "date": now.isoformat(timespec="seconds"),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Linux {platform.release()}",
        "filesystem": filesystem_of(directory),
        "load_before": f"{os.getloadavg()[0]:.1f}",
        "python": platform.python_version(),
    } | {package: _version_of(package) for package in PACKAGES}


def _version_of(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _series_json(series: Series) -> dict[str, Any]:  # Any: JSON
    if series.failure is not None:
        return {"not_run": series.failure}
    metrics = {name: {"median": series.median(name), "samples": values} for name, values in series.samples.items()}
    return {"metrics": metrics} | ({"note": series.note} if series.note else {})
