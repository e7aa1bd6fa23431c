"""A server that is killed at any step of a checkpoint's life loses nothing that it acknowledged."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from faults.lifecycle_sweep import SCENARIOS
from support.stores import place_in, shared_endpoint

SCRIPT = Path(__file__).with_name("lifecycle_sweep.py")

DEAR = {"save", "doctor", "weights of a sampler", "overwrite with undo", "copy", "purge"}  # in soak, with these:
DEAR |= {"first save", "delete of two", "delete with undo", "sweep by retention", "sweep of what expired"}


@pytest.mark.parametrize(
    "scenario", [pytest.param(name, marks=pytest.mark.soak if name in DEAR else ()) for name in SCENARIOS]
)
def test_killed_at_every_step_and_recovered(tmp_path: Path, scenario: str) -> None:
    sweep(tmp_path, scenario, os.environ)


@pytest.mark.soak
@pytest.mark.parametrize("scenario", [name for name in SCENARIOS if name != "doctor"])  # who looks at files there
def test_killed_at_every_step_and_recovered_from_a_bucket(tmp_path: Path, scenario: str) -> None:
    place = place_in(shared_endpoint())

    sweep(tmp_path, scenario, {**place.environment(os.environ), "CHOCKSTONE_SWEEP_BUCKET": place.url})


def sweep(home: Path, scenario: str, environment: Mapping[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(home), scenario],
        capture_output=True,
        text=True,
        env={**environment, "PYTHONPATH": str(SCRIPT.parents[1]), "OPENBLAS_NUM_THREADS": "1"},
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert "killed at" in done.stdout
