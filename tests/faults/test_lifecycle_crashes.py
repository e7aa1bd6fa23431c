"""A server that is killed at any step of a checkpoint's life loses nothing that it acknowledged."""

from __future__ import annotations

from pathlib import Path

import pytest

from faults.crash_harness import run_script
from faults.lifecycle_sweep import SCENARIOS
from support.stores import S3Place, place_in, shared_endpoint

STRIDE = 3  # of the steps that are tried in the suite
DEAR = {"save", "doctor", "weights of a sampler", "overwrite with undo", "copy", "purge"}  # in soak, with these:
DEAR |= {"first save", "delete of two", "delete with undo", "sweep by retention", "sweep of what expired"}


@pytest.mark.parametrize("scenario", [name for name in SCENARIOS if name not in DEAR])
def test_killed_at_steps_all_along_and_recovered(tmp_path: Path, scenario: str) -> None:
    sweep(tmp_path, scenario, stride=STRIDE)


@pytest.mark.soak
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_killed_at_every_step_and_recovered(tmp_path: Path, scenario: str) -> None:
    sweep(tmp_path, scenario)


@pytest.mark.soak
@pytest.mark.parametrize("scenario", [name for name in SCENARIOS if name != "doctor"])  # who looks at files there
def test_killed_at_every_step_and_recovered_from_a_bucket(tmp_path: Path, scenario: str) -> None:
    sweep(tmp_path, scenario, place=place_in(shared_endpoint()))


def sweep(home: Path, scenario: str, *, stride: int = 1, place: S3Place | None = None) -> None:
    assert "killed at" in run_script("lifecycle_sweep.py", home, scenario, stride, place=place)
