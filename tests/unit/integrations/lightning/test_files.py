"""Files: saves in the background, and deletions that wait for them."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch

from chockstone.checkpoints import Admission
from chockstone.checkpoints.errors import DamagedArchive, SaveFailed, UnstorableValue
from chockstone.integrations.lightning.files import ArchiveFiles

SLOW = 64 * 1024.0  # bytes per second: a save of a megabyte takes many seconds unless somebody waits for it


def files(**options: Any) -> ArchiveFiles:
    return ArchiveFiles(**{"save_ranks": "off", "buffers": 2, **options})


def checkpoint(step: int, *, size: int = 16) -> dict[str, Any]:
    return {"global_step": step, "state_dict": {"weight": torch.full((size,), float(step))}}


def restored(path: Path, *, walk_back: bool = False) -> int:
    step: int = files().restore(path, dict, walk_back=walk_back)["global_step"]
    return step


def flip_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def test_a_deletion_waits_for_the_save_before_it(tmp_path: Path) -> None:
    old, new = tmp_path / "old.ckpt", tmp_path / "new.ckpt"
    slow = files(bytes_per_second=SLOW)
    slow.save(checkpoint(1), old).result()

    slow.save(checkpoint(2, size=1_000_000), new)
    slow.delete(old)

    assert old.exists()
    assert not new.exists()
    slow.close()
    assert not old.exists()
    assert restored(new) == 2


def test_a_failed_save_keeps_the_old_checkpoint_and_is_raised_by_the_next_one(tmp_path: Path) -> None:
    old, new = tmp_path / "old.ckpt", tmp_path / "new.ckpt"
    full = files(admission=Admission(allowance_bytes=100_000))
    full.save(checkpoint(1), old).result()

    full.save(checkpoint(2, size=1_000_000), new).exception()
    full.delete(old)

    with pytest.raises(SaveFailed, match="new.ckpt"):
        full.save(checkpoint(3), tmp_path / "third.ckpt")
    full.close()  # raised once is enough
    assert restored(old) == 1


def test_close_raises_a_failure_unless_another_error_is_on_its_way(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    full = files(admission=Admission(allowance_bytes=100))
    full.save(checkpoint(1), tmp_path / "a.ckpt")
    with pytest.raises(ZeroDivisionError):
        try:
            _ = 1 / 0
        except ZeroDivisionError:
            full.close()
            raise
    assert "checkpoint not saved" in caplog.text

    with pytest.raises(SaveFailed, match="a.ckpt"):
        full.close()


def test_a_failure_is_raised_where_the_training_was_started_by_code_that_handles_an_error(tmp_path: Path) -> None:
    full = files(admission=Admission(allowance_bytes=100))
    try:
        _ = 1 / 0
    except ZeroDivisionError:
        full.save(checkpoint(1), tmp_path / "a.ckpt")

        with pytest.raises(SaveFailed, match="a.ckpt"):
            full.close()


def test_a_directory_stands_for_its_newest_good_archive(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    some = files()
    for step in (1, 2, 3):
        some.save(checkpoint(step), tmp_path / f"step={step}.ckpt")
    some.close()
    flip_bit(tmp_path / "step=3.ckpt")

    with caplog.at_level(logging.WARNING):
        assert restored(tmp_path) == 2
    assert "skipped" in caplog.text


def test_a_damaged_file_is_replaced_only_where_that_was_asked_for(tmp_path: Path) -> None:
    some = files()
    some.save(checkpoint(1), tmp_path / "step=1.ckpt")
    some.save(checkpoint(2), tmp_path / "last.ckpt")
    some.close()
    flip_bit(tmp_path / "last.ckpt")

    assert restored(tmp_path / "last.ckpt", walk_back=True) == 1
    with pytest.raises(DamagedArchive, match="give its directory"):
        restored(tmp_path / "last.ckpt")


def test_a_missing_file_is_reported_as_such(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"gone\.ckpt"):
        restored(tmp_path / "gone.ckpt")
    with pytest.raises(FileNotFoundError, match="no checkpoint"):
        restored(tmp_path)


def test_a_value_that_cannot_be_stored_is_named_by_its_path(tmp_path: Path) -> None:
    with pytest.raises(UnstorableValue, match=r"callbacks\.Mine\.hook"):
        files().save({"callbacks": {"Mine": {"hook": len}}}, tmp_path / "a.ckpt")


def test_saving_to_the_same_path_replaces_the_archive(tmp_path: Path) -> None:
    some = files()
    for step in (1, 2):
        some.save(checkpoint(step), tmp_path / "last.ckpt")
    some.close()

    assert restored(tmp_path / "last.ckpt") == 2
