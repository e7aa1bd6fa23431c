from __future__ import annotations

import os
from pathlib import Path

import pytest

from chockstone.checkpoints.errors import CheckpointExists, StoreError
from chockstone.checkpoints.format.host_memory import allocate
from chockstone.checkpoints.format.tar import PAGE
from chockstone.checkpoints.stores.file_sink import FileSink, SharedFile, create_locked, lock


def begin(root: Path, size: int = 2 * PAGE) -> FileSink:
    return FileSink(root / "run" / "one.tar", root / ".partial", name="run/one", size=size)


def page(value: int) -> memoryview:
    memory = allocate(PAGE)
    memory[:] = value
    return memory.data


def test_an_archive_appears_whole_with_its_commit(tmp_path: Path) -> None:
    sink = begin(tmp_path)
    sink.write_at(PAGE, page(2))
    sink.write_at(0, page(1))
    assert not (tmp_path / "run" / "one.tar").exists()

    sink.commit(overwrite=False)

    assert (tmp_path / "run" / "one.tar").read_bytes() == b"\1" * PAGE + b"\2" * PAGE
    assert list((tmp_path / ".partial").iterdir()) == []


def test_an_archive_with_a_gap_is_not_committed(tmp_path: Path) -> None:
    sink = begin(tmp_path)
    sink.write_at(0, page(1))

    with pytest.raises(StoreError, match=f"{PAGE} bytes of it were never written"):
        sink.commit(overwrite=False)
    sink.abort()

    assert not (tmp_path / "run").exists() or list((tmp_path / "run").iterdir()) == []
    assert list((tmp_path / ".partial").iterdir()) == []


def test_a_name_that_is_taken_stays_what_it_was(tmp_path: Path) -> None:
    for value in (1, 2):
        sink = begin(tmp_path, PAGE)
        sink.write_at(0, page(value))
        if value == 1:
            sink.commit(overwrite=False)
        else:
            with pytest.raises(CheckpointExists):
                sink.commit(overwrite=False)
        sink.abort()

    assert (tmp_path / "run" / "one.tar").read_bytes() == b"\1" * PAGE


def test_another_process_writes_its_part_through_a_ticket(tmp_path: Path) -> None:
    sink = begin(tmp_path)
    other = SharedFile(
        tmp_path / "run" / "one.tar", tmp_path / ".partial", name="run/one", size=2 * PAGE, ticket=sink.share()
    )

    other.write_at(PAGE, page(2))
    receipt = other.finish()
    other.close()
    sink.write_at(0, page(1))
    sink.settle([receipt])
    sink.commit(overwrite=False)

    assert (tmp_path / "run" / "one.tar").read_bytes() == b"\1" * PAGE + b"\2" * PAGE


def test_a_partial_file_is_locked_while_its_writer_lives(tmp_path: Path) -> None:
    path, descriptor = create_locked(tmp_path, "one")
    second = os.open(path, os.O_RDONLY)

    assert not lock(second)
    os.close(descriptor)
    assert lock(second)
    os.close(second)
