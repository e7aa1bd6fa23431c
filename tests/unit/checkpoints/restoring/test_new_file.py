from __future__ import annotations

import os
from pathlib import Path

import pytest

from chockstone.checkpoints.errors import ExportRefused
from chockstone.checkpoints.restoring.new_file import new_file


def test_a_file_appears_whole(tmp_path: Path) -> None:
    with new_file(tmp_path / "a") as partial:
        partial.write_bytes(b"content")
        assert not (tmp_path / "a").exists()

    assert os.listdir(tmp_path) == ["a"]
    assert (tmp_path / "a").read_bytes() == b"content"


def test_a_failure_leaves_nothing(tmp_path: Path) -> None:
    def fail() -> None:
        with new_file(tmp_path / "a") as partial:
            partial.write_bytes(b"half")
            raise RuntimeError("disk on fire")

    with pytest.raises(RuntimeError):
        fail()

    assert os.listdir(tmp_path) == []


def test_what_exists_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"old")

    with pytest.raises(ExportRefused, match="exists already"), new_file(tmp_path / "a"):
        pass
    with pytest.raises(ExportRefused, match="meanwhile"), new_file(tmp_path / "b") as partial:
        partial.write_bytes(b"new")
        (tmp_path / "b").write_bytes(b"faster")
    with pytest.raises(ExportRefused, match="there is no directory"), new_file(tmp_path / "x/y"):
        pass

    assert (tmp_path / "a").read_bytes() == b"old"
    assert (tmp_path / "b").read_bytes() == b"faster"
    assert sorted(os.listdir(tmp_path)) == ["a", "b"]
