"""SIGKILL at any moment of finishing an import: there is a whole checkpoint or none, and a repetition completes it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("import_kills.py")


def sweep(directory: Path, *, step: int) -> str:
    path = os.pathsep.join([str(SCRIPT.parents[1]), *sys.path])
    command = [sys.executable, str(SCRIPT), str(directory), str(step)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path})
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_killed_import_is_whole_or_absent(tmp_path: Path) -> None:
    assert "with a whole checkpoint" in sweep(tmp_path / "sweep", step=4)


@pytest.mark.soak
def test_an_import_that_is_killed_at_every_point_is_whole_or_absent(tmp_path: Path) -> None:
    assert "with a whole checkpoint" in sweep(tmp_path / "sweep", step=1)
