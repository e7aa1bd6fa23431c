"""The environment: where and with what a benchmark ran."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from benchmarks.harness.disk import filesystem_of


def describe_environment(directory: Path, *, packages: Iterable[str], now: datetime) -> dict[str, str]:
    return {
        "date": now.isoformat(timespec="seconds"),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Linux {platform.release()}",
        "filesystem": filesystem_of(directory),
        "load_before": f"{os.getloadavg()[0]:.1f}",
        "python": platform.python_version(),
    } | {package: _version_of(package) for package in packages}


def _version_of(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
