"""Homes of clusters, and what becomes of those that were left."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from chockstone.backends.ray.temp_directory import TempDirectory, remove_stale_directories

KILLED = (
    "import os; from chockstone.backends.ray.temp_directory import TempDirectory as T; "
    "print(T().path, flush=True); os.kill(os.getpid(), 9)"
)


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path


def grow_old(path: Path) -> None:
    os.utime(path, (0, 0))


def test_what_a_killed_driver_left_goes_with_the_next_one(temporary: Path) -> None:
    left = Path(subprocess.run([sys.executable, "-c", KILLED], capture_output=True, text=True).stdout.strip())
    (left / "session").mkdir()
    grow_old(left)

    home = TempDirectory()

    assert list(temporary.iterdir()) == [Path(home.path)]
    home.remove()
    assert list(temporary.iterdir()) == []


def test_the_living_the_young_and_the_others_stay(temporary: Path) -> None:
    home = TempDirectory()
    grow_old(Path(home.path))
    (temporary / "chockstone-ray-young").mkdir()
    (temporary / "chockstone-other").mkdir()
    (temporary / "chockstone-ray-link").symlink_to(temporary / "chockstone-other")
    grow_old(temporary / "chockstone-other")
    before = sorted(temporary.iterdir())

    remove_stale_directories()

    assert sorted(temporary.iterdir()) == before
    home.remove()


def test_nobody_else_can_look_into_a_home_whatever_ray_opens(temporary: Path) -> None:
    home = TempDirectory()
    os.mkdir(home.temporary)
    os.chmod(home.temporary, 0o777)  # as Ray does

    assert Path(home.temporary).parent == Path(home.path)
    assert os.stat(home.path).st_mode & 0o777 == 0o700
    home.remove()
    assert list(temporary.iterdir()) == []
