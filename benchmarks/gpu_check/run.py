"""The GPU check: ``python benchmarks/gpu_check/run.py --help``."""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

if __package__ in (None, ""):  # the repository goes on the path, and this directory comes off it
    sys.path[0] = str(Path(__file__).resolve().parents[2])

REPOSITORY: Final = Path(__file__).resolve().parents[2]
_BUDGET_SECONDS: Final = 600.0
_PACKAGES: Final = ("chockstone", "torch", "transformers", "peft", "safetensors", "numpy")


@dataclass(frozen=True, slots=True)
class CheckRow:
    check: str
    result: str  # ok, failed or skipped
    seconds: float
    numbers: dict[str, str]

    def line(self) -> str:
        told = "; ".join(f"{name}: {value}" for name, value in self.numbers.items()).replace("|", "\\|")
        return f"| {self.check} | {self.result} | {self.seconds:.1f} | {told} |"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description="Check training and sampling on the CUDA device of this machine, or with tiny models on its CPU. "
        "Prints a report in Markdown. Takes less than ten minutes on CUDA and about a minute on the CPU."
    )
    parser.add_argument("--device", choices=["auto", "cuda", "cpu"], default="auto", help="Device (default: auto).")
    parser.add_argument("--only", action="append", metavar="CHECK", help="Run this check only (repeatable).")
    parser.add_argument("--out", type=Path, help="Write the report to this file, too.")
    parser.add_argument("--list", action="store_true", help="List the checks.")
    parser.add_argument("--one", help=argparse.SUPPRESS)  # this process is that of one check
    asked = parser.parse_args(arguments)
    import torch

    device = asked.device if asked.device != "auto" else "cuda" if torch.cuda.is_available() else "cpu"
    if asked.one:
        print(json.dumps(run_one(asked.one, device)))
        return 0
    names = list(all_checks())
    if asked.list:
        print("\n".join(names))
        return 0
    if unknown := [name for name in asked.only or [] if name not in names]:
        parser.error(f"there is no check {unknown[0]!r}; there are {', '.join(names)}")
    rows = run_checks([name for name in names if not asked.only or name in asked.only], device)
    report = render(rows, device)
    print(report, end="")
    if asked.out:
        asked.out.parent.mkdir(parents=True, exist_ok=True)
        asked.out.write_text(report)
    return 1 if any(row.result == "failed" for row in rows) else 0


def all_checks() -> dict[str, Any]:
    from benchmarks.gpu_check.checks import CHECKS
    from benchmarks.gpu_check.ranks import train_on_ranks

    return {**CHECKS, "several ranks": train_on_ranks}


def run_checks(names: list[str], device: str) -> list[CheckRow]:
    """Each in a process of its own: one that runs out of memory fails alone."""
    deadline = time.monotonic() + _BUDGET_SECONDS
    rows = []
    for name in names:
        started = time.monotonic()
        left = deadline - started
        if left < 1:
            rows.append(CheckRow(name, "skipped", 0.0, {"reason": "ten minutes are over"}))
            continue
        print(f"{name} …", file=sys.stderr, flush=True)
        result, numbers = _run_apart(name, device, left)
        rows.append(CheckRow(name, result, time.monotonic() - started, numbers))
    return rows


def _run_apart(name: str, device: str, seconds: float) -> tuple[str, dict[str, str]]:
    command = [sys.executable, __file__, "--one", name, "--device", device]
    path = os.pathsep.join([str(REPOSITORY / "src"), os.environ.get("PYTHONPATH", "")])
    try:
        ended = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=seconds, env=os.environ | {"PYTHONPATH": path}
        )
    except subprocess.TimeoutExpired:
        return "failed", {"reason": f"not finished after {seconds:.0f} s"}
    try:
        answer = json.loads(ended.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        last = (ended.stderr.strip().splitlines() or ["no message"])[-1]
        return "failed", {"reason": f"ended with {ended.returncode}: {last[:200]}"}
    return answer["result"], answer["numbers"]


def run_one(name: str, device: str) -> dict[str, Any]:
    import warnings

    from benchmarks.gpu_check.checks import CheckSkipped, Place
    from benchmarks.gpu_check.scale import choose_scale

    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory(prefix="gpu-check-") as directory:
        try:
            numbers = all_checks()[name](Place(choose_scale(device), Path(directory)))
        except CheckSkipped as reason:
            return {"result": "skipped", "numbers": {"reason": str(reason)}}
        except Exception as error:
            reason_line = f"{type(error).__name__}: {error}".partition("\n")[0][:300]
            return {"result": "failed", "numbers": {"reason": reason_line}}
    return {"result": "ok", "numbers": numbers}


def render(rows: list[CheckRow], device: str) -> str:
    facts = "\n".join(f"| {name} | {value} |" for name, value in describe(device).items())
    lines = "\n".join(row.line() for row in rows)
    counts = ", ".join(f"{sum(row.result == each for row in rows)} {each}" for each in ("ok", "failed", "skipped"))
    return (
        f"# Chockstone GPU check: {counts}\n\n| | |\n|---|---|\n{facts}\n\n"
        f"| check | result | seconds | numbers |\n|---|---|---|---|\n{lines}\n"
    )


def describe(device: str) -> dict[str, str]:
    import torch

    found = {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "device": f"{platform.processor() or platform.machine()}, reduced form",
    }
    if device == "cuda":
        card = torch.cuda.get_device_properties(0)
        memory = f"{card.total_memory / 2**30:.0f} GiB"
        capability = f"compute capability {card.major}.{card.minor}"
        found["device"] = f"{torch.cuda.device_count()} × {card.name}, {memory}, {capability}"
        found["CUDA"] = str(torch.version.cuda)
    found["system"] = f"Linux {platform.release()}, Python {platform.python_version()}"
    return found | {name: _version(name) for name in _PACKAGES}


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


if __name__ == "__main__":
    sys.exit(main())
