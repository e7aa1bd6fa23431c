"""SIGKILL at any moment of a save: what was acknowledged is whole, nothing half-written is visible."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("kill_sweep.py")


def sweep(directory: Path, *, rounds: int, seed: int) -> str:
    command = [sys.executable, str(SCRIPT), str(directory), str(rounds), str(seed)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.soak)])
def test_fifty_kills_lose_nothing_that_was_acknowledged(seed: int, tmp_path: Path) -> None:
    report = sweep(tmp_path, rounds=50, seed=seed)

    assert report.startswith("50 kills")


@pytest.mark.soak
def test_a_thousand_kills_lose_nothing(tmp_path: Path) -> None:
    assert sweep(tmp_path, rounds=1000, seed=3).startswith("1000 kills")
