"""F11 and F12: a kill at any moment of what an attempt writes. What was acknowledged is there, whole, and alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from harness import World

SCRIPT = Path(__file__).with_name("kill_resume.py")
TESTS = Path(__file__).parents[2]
FILE_IN_SOAK = [pytest.param("file", marks=pytest.mark.soak), "s3"]  # test_resume_sigkill has random kills on files
WORLDS_IN_SOAK = ["file", pytest.param("s3", marks=pytest.mark.soak)]  # the suite has random kills on S3


def run(world: World, life: str, *how: int | str) -> dict[str, Any]:
    command = [sys.executable, str(SCRIPT), world.base, life, *map(str, how)]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(SCRIPT.parent), str(TESTS)])}
    done = subprocess.run(command, capture_output=True, text=True, env=environ)
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    return told


@pytest.mark.parametrize("world", WORLDS_IN_SOAK, indirect=True)
def test_f11_a_kill_at_every_boundary_of_a_save_leaves_the_one_before(world: World) -> None:
    told = run(world, "first_save")

    assert told["boundaries"] >= (20 if world.kind == "file" else 5)
    assert told["outcomes"].keys() == {"10", "20"}, "before its commit and after it"


@pytest.mark.soak
def test_f11_a_kill_at_every_boundary_of_a_restart_leaves_the_one_before(world: World) -> None:
    assert run(world, "restart", "both")["outcomes"].keys() == {"10", "20"}


@pytest.mark.soak
def test_f11_a_kill_at_every_boundary_of_a_forward_leaves_its_source(world: World) -> None:
    assert run(world, "forward", "both")["outcomes"].keys() == {"10"}


@pytest.mark.soak
@pytest.mark.parametrize("life", ["first_save", "second_save"])
def test_f11_a_kill_on_either_side_of_every_boundary_leaves_the_one_before(world: World, life: str) -> None:
    assert run(world, life, "both")["outcomes"].keys() == {"10", "20"}


@pytest.mark.parametrize("world", FILE_IN_SOAK, indirect=True)
@pytest.mark.parametrize("seed", [1])
def test_f11_kills_at_random_moments_lose_nothing_that_was_acknowledged(seed: int, world: World) -> None:
    assert run(world, "many_saves", seed)["kills"] == 12


def test_f12_a_kill_in_the_second_save_of_an_attempt_leaves_the_first_whole(world: World) -> None:
    told = run(world, "second_save")

    assert told["boundaries"] >= (10 if world.kind == "file" else 1)
    assert told["outcomes"].keys() == {"10", "20"}
