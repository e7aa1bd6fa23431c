"""An engine that is killed before any step that is durable, once or life after life: its client never notices."""

from __future__ import annotations

from pathlib import Path

import pytest

from faults.crash_harness import run_script
from support.stores import S3Place, place_in, shared_endpoint

STRIDE = 14  # of the steps that are tried in the suite


def run(home: Path, *arguments: object, place: S3Place | None = None) -> int:
    """How many kills there were, none of which was noticed."""
    return int(run_script("crash_sweep.py", home, *arguments, place=place).split()[0])


@pytest.mark.parametrize("first", [pytest.param(1, marks=pytest.mark.soak), 8])
def test_killed_before_a_step(tmp_path: Path, first: int) -> None:
    assert run(tmp_path, "every", first, STRIDE) > 8


def test_killed_life_after_life(tmp_path: Path) -> None:
    assert run(tmp_path, "lives", 2, 1) > 6


def test_killed_before_a_step_with_archives_in_a_bucket(tmp_path: Path) -> None:
    assert run(tmp_path, "every", 17, 60, place=place_in(shared_endpoint())) >= 2


@pytest.mark.soak
def test_killed_before_every_step(tmp_path: Path) -> None:
    assert run(tmp_path, "every", 1, 1) > 100


@pytest.mark.soak
def test_killed_before_every_step_with_archives_in_a_bucket(tmp_path: Path) -> None:
    assert run(tmp_path, "every", 1, 1, place=place_in(shared_endpoint())) > 80


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(5))
def test_killed_life_after_life_for_long(tmp_path: Path, seed: int) -> None:
    assert run(tmp_path, "lives", 40, seed) > 100
