"""The environment: where and with what a benchmark ran, and how its series are written down."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from benchmarks.checkpoints.durability import filesystem_of
from benchmarks.checkpoints.rounds import Series


def describe_environment(directory: Path, *, packages: Iterable[str], now: datetime) -> dict[str, str]:
    return {
        "date": now.isoformat(timespec="seconds"),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Linux {platform.release()}",
        "filesystem": filesystem_of(directory),
        "load_before": f"{os.getloadavg()[0]:.1f}",
        "python": platform.python_version(),
    } | {package: _version_of(package) for package in packages}


def series_json(series: Series) -> dict[str, Any]:  # Any: JSON
    if series.failure is not None:
        return {"not_run": series.failure}
    metrics = {name: {"median": series.median(name), "samples": values} for name, values in series.samples.items()}
    return {"metrics": metrics} | ({"note": series.note} if series.note else {})


def _version_of(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
