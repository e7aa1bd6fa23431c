"""What is restored comes to its place complete, beside what is there."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from chockstone.checkpoints.errors import LocalResourceError
from chockstone.integrations.flyte import staging as module
from chockstone.integrations.flyte.staging import StagingDirectory, move_into, staging


def fill(directory: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_bytes(content)
    return directory


def tree(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


NEW = {"a": b"new", "deep/b": b"new", "deep/er/c": b"new", "other/d": b"new"}
OLD = {"a": b"old", "deep/b": b"old", "deep/mine": b"old", "notes": b"old"}


def other_disk(source: object, target: object, **_: object) -> None:
    raise OSError(errno.EXDEV, "another disk", str(source), None, str(target))


@pytest.mark.parametrize("is_same_disk", [True, False])
def test_files_are_replaced_by_name_and_others_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_same_disk: bool
) -> None:
    staged, target = fill(tmp_path / "staged", NEW), fill(tmp_path / "target", OLD)
    if not is_same_disk:
        replace = os.replace
        monkeypatch.setattr(
            module.os, "replace", lambda a, b: replace(a, b) if Path(a).parent == Path(b).parent else other_disk(a, b)
        )
        monkeypatch.setattr(module.os, "rename", other_disk)

    move_into(staged, target)

    assert tree(target) == {**OLD, **NEW}


@pytest.mark.parametrize("obstacle", [{"a/b": b"old"}, {"deep": b"old"}])
def test_a_folder_for_a_file_is_said_to_be_in_the_way(tmp_path: Path, obstacle: dict[str, bytes]) -> None:
    staged, target = fill(tmp_path / "staged", NEW), fill(tmp_path / "target", obstacle)

    with pytest.raises(LocalResourceError, match="empty directory"):
        move_into(staged, target)


def test_F23_a_full_disk_is_our_own_trouble(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    staged, target = fill(tmp_path / "staged", NEW), fill(tmp_path / "target", {})
    target.mkdir()

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(module.os, "replace", full)

    with pytest.raises(LocalResourceError, match="no space"):
        move_into(staged, target)


def test_nothing_of_a_failed_one_is_left(tmp_path: Path) -> None:
    for name in ("target", "spare"):
        (tmp_path / name).mkdir()

    with pytest.raises(RuntimeError), staging(tmp_path / "target", tmp_path / "spare") as staged:
        fill(staged, NEW)
        raise RuntimeError

    assert tree(tmp_path) == {}
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["spare", "target"]


def test_a_scratch_directory_is_made_when_it_is_asked_for_and_goes_with_its_object() -> None:
    scratch = StagingDirectory()
    assert scratch._path is None
    name = scratch.name
    assert scratch.name == name and Path(name).is_dir()

    del scratch

    assert not Path(name).exists()
