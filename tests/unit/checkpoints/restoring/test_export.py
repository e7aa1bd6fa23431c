from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from chockstone.checkpoints import Archive, Checkpointer, open_store
from chockstone.checkpoints.errors import DigestMismatch, ExportRefused, StoreDenied
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


def test_members_become_files_with_the_same_bytes(archive: Archive, tmp_path: Path) -> None:
    seen: list[int] = []

    written = export_members(archive, tmp_path / "out", on_bytes=seen.append)

    assert [member.name for member in written] == list(archive.members)
    for member in written:
        assert (tmp_path / "out" / member.name).read_bytes() == archive.read(member.name)
    assert sum(seen) == sum(member.size for member in written)
    assert os.listdir(tmp_path) == ["out"]


def test_every_block_is_verified_on_the_way(archive: Archive, tmp_path: Path) -> None:
    export_members(archive, tmp_path / "out")

    assert archive.blocks_verified == archive.layout.block_count > 10


def test_patterns_choose_members(archive: Archive, tmp_path: Path) -> None:
    export_members(archive, tmp_path / "out", members=["sub/*", "config.json"])

    files = sorted(str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out").rglob("*.*"))
    assert files == ["config.json", "sub/a.txt", "sub/deep/b.txt"]


def test_a_pattern_that_matches_nothing_is_refused(archive: Archive, tmp_path: Path) -> None:
    with pytest.raises(ExportRefused, match=r"'confg.json'; it holds state.json, config.json"):
        export_members(archive, tmp_path / "out", members=["config.json", "confg.json"])

    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("kind", ["directory", "file", "dangling link"])
def test_what_exists_is_never_touched(archive: Archive, tmp_path: Path, kind: str) -> None:
    target = tmp_path / "out"
    if kind == "directory":
        target.mkdir()
    elif kind == "file":
        target.write_text("mine")
    else:
        target.symlink_to(tmp_path / "nowhere")

    with pytest.raises(ExportRefused, match="exists already"):
        export_members(archive, target)

    assert os.listdir(tmp_path) == ["out"]
    assert target.is_symlink() == (kind == "dangling link")


def test_damage_leaves_nothing(saved: Path, tmp_path: Path) -> None:
    content = bytearray(saved.read_bytes())
    content[len(content) // 2] ^= 1
    (tmp_path / "bad.tar").write_bytes(content)

    with Archive(open_store(tmp_path).open("bad")) as archive, pytest.raises(DigestMismatch):
        export_members(archive, tmp_path / "out")

    assert os.listdir(tmp_path) == ["bad.tar"]


def test_an_interrupt_in_the_first_moment_leaves_nothing(
    archive: Archive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mkdir = os.mkdir

    def make_and_interrupt(path: Path) -> None:
        mkdir(path)
        raise KeyboardInterrupt

    monkeypatch.setattr(new_directory_module.os, "mkdir", make_and_interrupt)

    with pytest.raises(KeyboardInterrupt):
        export_members(archive, tmp_path / "out")

    assert os.listdir(tmp_path) == []


def test_an_interrupt_leaves_nothing(archive: Archive, tmp_path: Path) -> None:
    def interrupt(_: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        export_members(archive, tmp_path / "out", on_bytes=interrupt)

    assert os.listdir(tmp_path) == []


def test_links_put_in_the_way_are_not_followed(archive: Archive, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    (outside / "deep").mkdir(parents=True)

    def swap(_: int) -> None:
        for folder in tmp_path.glob(".export-*/sub"):
            folder.rename(folder.with_name("moved"))
            folder.symlink_to(outside)

    with pytest.raises(StoreDenied):
        export_members(archive, tmp_path / "out", members=["sub/*"], on_bytes=swap)

    assert os.listdir(tmp_path) == ["outside"]
    assert os.listdir(outside / "deep") == []
