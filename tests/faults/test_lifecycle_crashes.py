"""A server that is killed at any step of a checkpoint's life loses nothing that it acknowledged."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from faults.lifecycle_sweep import SCENARIOS

SCRIPT = Path(__file__).with_name("lifecycle_sweep.py")

DEAR = {"save", "doctor", "weights of a sampler", "overwrite with undo", "copy", "purge"}  # in soak, with these:
DEAR |= {"delete of two", "delete with undo"}


@pytest.mark.parametrize(
    "scenario", [pytest.param(name, marks=pytest.mark.soak if name in DEAR else ()) for name in SCENARIOS]
)
def test_killed_at_every_step_and_recovered(tmp_path: Path, scenario: str) -> None:
    environment = {**os.environ, "PYTHONPATH": str(SCRIPT.parents[1]), "OPENBLAS_NUM_THREADS": "1"}

    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(tmp_path), scenario], capture_output=True, text=True, env=environment
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert "killed at" in done.stdout
