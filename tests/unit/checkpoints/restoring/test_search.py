"""The search for the newest checkpoint that can be read."""

from __future__ import annotations

import hashlib
import logging
import tarfile
from pathlib import Path

import pytest

from chockstone.checkpoints import Checkpointer, Resume
from chockstone.checkpoints.errors import (
    CheckpointMissing,
    DamagedArchive,
    DigestMismatch,
    UnsupportedArchive,
)
from chockstone.checkpoints.restoring.search import CheckpointSearch
from chockstone.checkpoints.stores.file_store import FileStore
from chockstone.checkpoints.stores.store import ArchiveSource, StoreEntry
from support.checkpoints.damage import first_tensor, flip, save_three
from support.tensors import zeros


def test_a_checkpoint_of_a_newer_format_stops_a_restore(tmp_path: Path) -> None:
    with Checkpointer(tmp_path) as checkpointer:
        save_three(checkpointer)
        path = tmp_path / "step-00000002.tar"
        content = path.read_bytes()
        payload = content[4096:8192]
        newer = payload.replace(b'"version": 1,', b'"version": 2,')
        seal, new_seal = (hashlib.sha256(p).hexdigest().encode() for p in (payload, newer))
        path.write_bytes(content.replace(payload, newer).replace(seal, new_seal))

        with pytest.raises(UnsupportedArchive, match="has format version 2"):
            checkpointer.restore({"x": zeros(1000)})


def test_a_foreign_tar_in_the_directory_is_walked_past(tmp_path: Path) -> None:
    with Checkpointer(tmp_path) as checkpointer:
        save_three(checkpointer)
        with tarfile.open(tmp_path / "zz-dataset.tar", "w") as tar:
            tar.add(__file__)

        assert checkpointer.load()["x"][0] == 2.0


def test_the_newest_sound_checkpoint_is_found_without_a_restore(tmp_path: Path) -> None:
    with Checkpointer(tmp_path) as checkpointer:
        assert CheckpointSearch(checkpointer.store, "", kind="weights", name=None).verify() is None
        save_three(checkpointer)
        flip(tmp_path / "step-00000002.tar", first_tensor(checkpointer, "step-00000002"))

        found = CheckpointSearch(checkpointer.store, "", kind="weights", name=None).verify()

    assert found is not None
    assert (found.name, [skip.name for skip in found.skipped]) == ("step-00000001", ["step-00000002"])


def test_damaged_checkpoints_are_walked_past_and_named(tmp_path: Path) -> None:
    with Checkpointer(tmp_path) as checkpointer:
        save_three(checkpointer)
        flip(tmp_path / "step-00000002.tar", first_tensor(checkpointer, "step-00000002") + 5)
        (tmp_path / "step-00000001.tar").write_bytes(b"")
        target = {"x": zeros(1000)}

        receipt = checkpointer.restore(target)

    assert receipt.step == 0
    assert target["x"][0] == 0.0
    assert {skip.name for skip in receipt.skipped} == {"step-00000001", "step-00000002"}
    assert "not what was written" in str(receipt)


def test_a_named_checkpoint_that_is_damaged_is_an_error(tmp_path: Path) -> None:
    with Checkpointer(tmp_path) as checkpointer:
        save_three(checkpointer)
        flip(tmp_path / "step-00000002.tar", first_tensor(checkpointer, "step-00000002"))

        with pytest.raises(DigestMismatch):
            checkpointer.restore({"x": zeros(1000)}, name="step-00000002")


def test_a_first_start_restores_nothing_and_returns_none_as_resume_does(tmp_path: Path) -> None:
    state = {"x": zeros(3) + 1}
    with Checkpointer(tmp_path / "checkpointer") as checkpointer, Resume(tmp_path / "resume") as resume:
        receipts = [checkpointer.restore(state), resume.restore(state)]

    assert receipts == [None, None]
    assert state["x"].tolist() == [1.0, 1.0, 1.0]


def test_a_first_start_is_logged_with_place_and_kind(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with Checkpointer(tmp_path, prefix="run") as checkpointer:
        checkpointer.restore({})

    assert caplog.messages == [f"first start: no checkpoint to restore place={tmp_path.as_uri()}/run kind=weights"]


def test_checkpoints_of_other_kinds_alone_are_not_a_first_start(tmp_path: Path) -> None:
    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save({"x": 1}, name="a", kind="full")
        checkpointer.save({"x": 1}, name="b", kind="adapter").result()

        with pytest.raises(CheckpointMissing, match="of kind 'weights' in .*, only of kind 'adapter', 'full'. Give"):
            checkpointer.restore({"x": 0})
        assert checkpointer.restore({"x": 0}, kind="full") is not None


@pytest.mark.parametrize("moment", ["listed", "examined"])
def test_a_checkpoint_that_is_replaced_during_the_search_is_not_a_first_start(tmp_path: Path, moment: str) -> None:
    class ReplacedStore(FileStore):
        """Another writer replaces the only checkpoint, once: while the store examines it, or after it is listed."""

        def stat(self, name: str) -> StoreEntry:
            if moment == "examined":
                self._replace()
            return super().stat(name)

        def open(self, name: str) -> ArchiveSource:
            if moment == "listed":
                self._replace()
            return super().open(name)

        def _replace(self) -> None:
            if (old := self.path("old")).exists():
                old.rename(self.path("new"))

    with Checkpointer(tmp_path) as writer:
        writer.save({"x": 1}, name="old", step=7)
    with Checkpointer(ReplacedStore(tmp_path)) as checkpointer:
        receipt = checkpointer.restore({"x": 0})

    assert receipt is not None and (receipt.name, receipt.step) == ("new", 7)


def test_a_checkpoint_that_is_asked_for_by_name_or_loaded_must_exist(tmp_path: Path) -> None:
    with Checkpointer(tmp_path) as checkpointer:
        with pytest.raises(CheckpointMissing, match="'best' is not in"):
            checkpointer.restore({}, name="best")
        with pytest.raises(CheckpointMissing, match="there is no checkpoint"):
            checkpointer.load()


def test_nothing_usable_is_not_a_first_start(tmp_path: Path) -> None:
    with Checkpointer(tmp_path) as checkpointer:
        (tmp_path / "torn.tar").write_bytes(b"torn")

        with pytest.raises(DamagedArchive, match="none of the checkpoints"):
            checkpointer.restore({})


def test_the_newest_is_the_one_made_last_even_when_the_clock_jumps_back(tmp_path: Path) -> None:
    from datetime import UTC, datetime, timedelta

    clock = [datetime(2030, 1, 2, tzinfo=UTC)]
    with Checkpointer(tmp_path, now=lambda: clock[0]) as checkpointer:
        checkpointer.save({"x": 1}, step=200).result()
        clock[0] -= timedelta(days=1)
        checkpointer.save({"x": 2}, step=150).result()

        target = {"x": 0}
        receipt = checkpointer.restore(target)

    assert (receipt.step, target["x"]) == (150, 2)
