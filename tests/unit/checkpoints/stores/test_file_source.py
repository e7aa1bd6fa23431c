from __future__ import annotations

import os
from pathlib import Path

import pytest

from chockstone.checkpoints.errors import CheckpointMissing, TruncatedArchive
from chockstone.checkpoints.format.host_memory import allocate
from chockstone.checkpoints.format.tar import PAGE
from chockstone.checkpoints.stores.file_source import open_file


@pytest.mark.parametrize(("offset", "size"), [(0, 64 * PAGE), (PAGE, 32 * PAGE), (17, 1000)])
def test_whole_pages_and_odd_ranges_are_read_alike(tmp_path: Path, offset: int, size: int) -> None:
    content = os.urandom(64 * PAGE)
    path = tmp_path / "archive.tar"
    path.write_bytes(content)
    memory = allocate(size)[:size]

    source = open_file(path)
    source.read_into(offset, memory.data)
    source.close()

    assert memory.tobytes() == content[offset : offset + size]


def test_a_read_behind_the_end_is_a_truncated_archive(tmp_path: Path) -> None:
    path = tmp_path / "archive.tar"
    path.write_bytes(bytes(10))
    source = open_file(path)

    with pytest.raises(TruncatedArchive):
        source.read_into(0, memoryview(bytearray(11)))
    source.close()


def test_a_mapping_is_private(tmp_path: Path) -> None:
    path = tmp_path / "archive.tar"
    path.write_bytes(bytes(PAGE))
    source = open_file(path)

    memory = source.map()
    source.close()

    assert memory is not None
    memory[0] = 7
    assert path.read_bytes() == bytes(PAGE)


@pytest.mark.parametrize("kind", ["absent", "directory", "circle"])
def test_what_is_no_file_is_missing(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "archive.tar"
    if kind == "directory":
        path.mkdir()
    elif kind == "circle":
        path.symlink_to(path)

    with pytest.raises(CheckpointMissing, match="there is no archive file"):
        open_file(path)
