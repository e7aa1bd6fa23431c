"""New directories appear whole or not at all."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from chockstone.checkpoints import Archive, Checkpointer, open_store
from chockstone.checkpoints.errors import ExportRefused
from chockstone.checkpoints.restoring import new_directory as new_directory_module
from chockstone.checkpoints.restoring.export import export_members

WEIGHTS = np.arange(5_000_000, dtype=np.float32)  # several blocks


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("store")
    with Checkpointer(root) as checkpointer:
        files = {"config.json": b"{}", "sub/a.txt": b"a", "sub/deep/b.txt": b"b", "empty": b""}
        checkpointer.save({"model": {"w": WEIGHTS}}, name="one", files=files)
    return root / "one.tar"


@pytest.fixture
def archive(saved: Path) -> Iterator[Archive]:
    with Archive(open_store(saved.parent).open("one")) as archive:
        yield archive


def test_a_target_that_appears_meanwhile_is_not_replaced(archive: Archive, tmp_path: Path) -> None:
    target = tmp_path / "out"

    with pytest.raises(ExportRefused, match="exists already"):
        export_members(archive, target, on_bytes=lambda _: target.mkdir(exist_ok=True))

    assert os.listdir(tmp_path) == ["out"]
    assert os.listdir(target) == []


@pytest.mark.parametrize("directory", ["nowhere/out", "..", "/"])
def test_a_directory_that_cannot_be_made_is_refused(
    archive: Archive, tmp_path: Path, directory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    with pytest.raises(ExportRefused):
        export_members(archive, Path(directory))

    assert os.listdir(tmp_path) == []


def test_file_systems_without_exclusive_rename_are_served(
    archive: Archive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(source: Path, target: Path) -> None:
        raise OSError(errno.EINVAL, "no such flag", str(target))

    monkeypatch.setattr(new_directory_module, "move_if_absent", refuse)

    export_members(archive, tmp_path / "out", members=["config.json"])

    assert (tmp_path / "out" / "config.json").read_bytes() == b"{}"
    assert os.listdir(tmp_path) == ["out"]
