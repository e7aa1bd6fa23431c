"""SIGKILL at any moment of an attempt: the next goes on from the newest acknowledged save, or from one after it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from harness import S3World

SCRIPT = Path(__file__).with_name("resume_kill_sweep.py")


def sweep(root: str, *, rounds: int, longest_seconds: float, seed: int) -> str:
    command = [sys.executable, str(SCRIPT), root, str(rounds), str(longest_seconds), str(seed)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.soak)])
def test_fifty_kills_never_set_a_training_back(seed: int, tmp_path: Path) -> None:
    report = sweep(str(tmp_path), rounds=50, longest_seconds=0.3, seed=seed)

    assert report.startswith("50 kills")


@pytest.mark.soak
def test_a_thousand_kills_never_do(tmp_path: Path) -> None:
    report = sweep(str(tmp_path), rounds=1000, longest_seconds=0.3, seed=3)

    print(report)
    assert report.startswith("1000 kills")


@pytest.mark.soak
def test_nor_do_three_hundred_on_s3(s3_world: S3World) -> None:
    report = sweep(s3_world.uri("sweep"), rounds=300, longest_seconds=3.0, seed=4)

    print(report)
    assert report.startswith("300 kills")
