"""Files that are streamed into an archive, and change meanwhile."""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest

from chockstone.checkpoints import Archive, verify_archive
from chockstone.checkpoints.errors import (
    CheckpointError,
)
from chockstone.checkpoints.file_archive import write_files
from chockstone.checkpoints.saving import writer
from chockstone.checkpoints.stores.file_store import FileStore
from chockstone.checkpoints.stores.store import Store
from support.checkpoints.file_archives import MIB, NOON, assert_nothing_is_left, make_files


def append(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"more")


def cut(path: Path) -> None:
    os.truncate(path, 5)


def rewrite(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))
    os.utime(path, ns=(1, 1))


def swap(path: Path) -> None:
    facts = path.stat()
    path.with_name("new").write_bytes(bytes(facts.st_size))
    os.utime(path.with_name("new"), ns=(facts.st_atime_ns, facts.st_mtime_ns))
    path.with_name("new").rename(path)


def link(path: Path) -> None:
    path.rename(path.with_name("moved"))
    path.symlink_to(path.with_name("moved"))


@pytest.mark.parametrize("change", [append, cut, rewrite, swap, link, Path.unlink])
@pytest.mark.parametrize("when", ["first", "last"])
@pytest.mark.usefixtures("small_chunks")
def test_a_file_that_changes_while_it_is_saved_fails_the_save(
    store: Store, tmp_path: Path, change: Callable[[Path], None], when: str
) -> None:
    """At the first bytes its own are still to be read; at the last ones all have been."""
    files = make_files(tmp_path / "mine")
    path = files["sub/deep/large.bin"]
    size = write_files(FileStore(tmp_path / "trial"), "trial", files, created_at=NOON).size_bytes
    seen: list[int] = []
    done: list[bool] = []

    def meddle(count: int) -> None:
        seen.append(count)
        if not done and (when == "first" or sum(seen) == size):
            done.append(True)
            change(path)

    with pytest.raises(CheckpointError, match=r"large\.bin' (was changed while|is not there)"):
        write_files(store, "one", files, created_at=NOON, on_bytes=meddle)

    assert done
    assert_nothing_is_left(store)


@pytest.mark.usefixtures("small_chunks")
def test_digests_fit_what_was_written_even_when_a_change_hides(tmp_path: Path) -> None:
    """Each byte is read once: hashed and written are the same, whatever the file does in between."""
    store = FileStore(tmp_path / "store")
    path = tmp_path / "a"
    path.write_bytes(bytes(6 * MIB))
    facts = path.stat()
    rounds = count(1)

    def meddle(_: int) -> None:
        with path.open("r+b") as file:
            file.write(bytes([next(rounds) % 256]) * 6 * MIB)
        os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns))

    real_pwrite = os.pwrite

    def meddling_pwrite(descriptor: int, data: memoryview, offset: int) -> int:
        meddle(0)
        return real_pwrite(descriptor, data, offset)

    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(os, "pwrite", meddling_pwrite)
        monkeypatch.setattr(writer, "THREADS", 1)  # so that no other sees the change before it is hidden
        write_files(store, "one", {"a": path}, created_at=NOON, on_bytes=meddle)

    with Archive(store.open("one")) as archive:
        verify_archive(archive)
        assert archive.blocks_verified == archive.layout.block_count > 5
