"""Handles of saves: progress, results and errors."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from chockstone.checkpoints import Checkpointer
from chockstone.checkpoints.errors import (
    CheckpointError,
    SaveFailed,
)
from chockstone.checkpoints.stores.file_store import FileStore
from chockstone.checkpoints.stores.store import Sink
from support.tensors import zeros


class FailingStore(FileStore):
    def begin(self, name: str, size: int) -> Sink:
        raise CheckpointError("the disk is on fire")


def test_progress_counts_every_byte_of_the_archive(tmp_path: Path) -> None:
    with Checkpointer(tmp_path) as checkpointer:
        handle = checkpointer.save({"x": zeros(1000, 1000)}, step=1)
        saved = handle.result()

    assert handle.progress.bytes_done == handle.progress.bytes_total == saved.size_bytes
    assert handle.progress.fraction == 1.0
    assert (tmp_path / "step-00000001.tar").stat().st_size == saved.size_bytes


def test_an_error_is_on_the_handle(tmp_path: Path) -> None:
    with Checkpointer(FailingStore(tmp_path)) as checkpointer:
        handle = checkpointer.save({"x": 1}, step=1)

        with pytest.raises(CheckpointError, match="on fire"):
            handle.result()


def test_an_error_nobody_looked_at_is_raised_by_the_next_save(tmp_path: Path) -> None:
    with Checkpointer(FailingStore(tmp_path)) as checkpointer:
        checkpointer.save({"x": 1}, step=1)
        checkpointer.wait()

        with pytest.raises(SaveFailed, match="the earlier save of 'step-00000001' failed: the disk is on fire"):
            checkpointer.save({"x": 1}, step=2)


def test_an_error_that_was_seen_is_not_raised_again(tmp_path: Path) -> None:
    with Checkpointer(FailingStore(tmp_path)) as checkpointer:
        assert checkpointer.save({"x": 1}, step=1).exception() is not None

        assert checkpointer.save({"x": 1}, step=2).exception() is not None


def test_every_unseen_error_is_raised_once(tmp_path: Path) -> None:
    both_begun = threading.Event()

    class FailingLate(FailingStore):
        def begin(self, name: str, size: int) -> Sink:
            assert both_begun.wait(60)
            return super().begin(name, size)

    with Checkpointer(FailingLate(tmp_path), buffers=2) as checkpointer:
        checkpointer.save({"x": 1}, step=1)
        checkpointer.save({"x": 1}, step=2)
        both_begun.set()
        checkpointer.wait()

        for name in ("step-00000001", "step-00000002"):
            with pytest.raises(SaveFailed, match=name):
                checkpointer.save({"x": 1}, step=3)
