"""The background half of a save."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from chockstone.checkpoints import Checkpointer
from chockstone.checkpoints.errors import (
    CheckpointExists,
)
from support.checkpoints.damage import partials


def test_a_name_is_never_written_twice(tmp_path: Path) -> None:
    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save({"x": 1}, name="best").result()

        with pytest.raises(CheckpointExists, match="'best' exists already"):
            checkpointer.save({"x": 2}, name="best").result()

        assert checkpointer.load(name="best") == {"x": 1}


def test_overwrite_replaces_it_whole(tmp_path: Path) -> None:
    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save({"x": 1}, name="best").result()
        checkpointer.save({"x": 2}, name="best", overwrite=True).result()

        assert checkpointer.load(name="best") == {"x": 2}


def test_what_killed_processes_left_is_swept_by_the_first_save(tmp_path: Path) -> None:
    directory = tmp_path / ".partial"
    directory.mkdir()
    old, young = directory / "old.tar", directory / "young.tar"
    for path in (old, young):
        path.write_bytes(b"left")
    os.utime(old, (0, 0))

    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save({"x": 1}, step=1).result()

    assert partials(tmp_path) == [young]
