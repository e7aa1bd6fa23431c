from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from chockstone.checkpoints import Archive, Checkpointer, open_store
from chockstone.checkpoints.errors import (
    AdmissionRefused,
    CheckpointExists,
    ImportRefused,
    InvalidName,
)
from chockstone.checkpoints.saving.admission import Admission
from chockstone.integrations.formats import import_checkpoint
from chockstone.integrations.formats.importing import ImportPlace, leave_out, put_under, store_foreign
from chockstone.integrations.formats.reading.recognition import read_foreign
from support.integrations.foreign import same, trained, training_state


def test_an_imported_checkpoint_is_restored_into_live_objects(tmp_path: Path) -> None:
    module, optimizer = trained()
    torch.save({"model": module.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3}, tmp_path / "old.pt")

    imported = import_checkpoint(tmp_path / "old.pt", tmp_path / "store", prefix="run-1", step=1000)

    other, other_optimizer = trained()
    with torch.no_grad():
        other[0].weight.zero_()
    state: dict[str, Any] = {"model": other, "optimizer": other_optimizer, "epoch": 0}
    with Checkpointer(tmp_path / "store", prefix="run-1") as checkpointer:
        receipt = checkpointer.restore(state)
        assert checkpointer.verify(imported.name)
    assert receipt is not None and receipt.step == 1000
    assert (imported.name, state["epoch"]) == ("run-1/step-00001000", 3)
    assert same(other.state_dict(), module.state_dict())
    assert same(other_optimizer.state_dict(), optimizer.state_dict())


def test_the_archive_says_where_it_came_from(tmp_path: Path) -> None:
    torch.save(training_state() | {"names": 0}, tmp_path / "old.pt")

    imported = import_checkpoint(tmp_path / "old.pt", tmp_path / "store")

    with Archive(open_store(tmp_path / "store").open(imported.name)) as archive:
        assert archive.manifest.metadata == {"imported": {"format": "torch", "source": "old.pt"}}
        assert (imported.name, imported.step, archive.manifest.kind) == ("old", None, "weights")


def test_a_later_import_is_the_newest_whatever_the_clocks_say(tmp_path: Path) -> None:
    from datetime import UTC, datetime

    with Checkpointer(tmp_path / "store", now=lambda: datetime(2100, 1, 1, tzinfo=UTC)) as checkpointer:
        checkpointer.save({"w": torch.zeros(1)}, step=1).result()
    torch.save({"w": torch.ones(1)}, tmp_path / "step_2.pt")

    import_checkpoint(tmp_path / "step_2.pt", tmp_path / "store")

    with Checkpointer(tmp_path / "store") as checkpointer:
        assert checkpointer.load()["w"].item() == 1


def test_a_refused_import_stores_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = tmp_path / "store"
    torch.save({"w": torch.ones(1)}, tmp_path / "a.pt")
    import_checkpoint(tmp_path / "a.pt", store)
    torch.save({"w": torch.ones(1).to_sparse()}, tmp_path / "sparse.pt")
    before = sorted(os.listdir(store))

    with pytest.raises(CheckpointExists, match="--name"):
        import_checkpoint(tmp_path / "a.pt", store)
    with pytest.raises(ImportRefused, match="_rebuild_sparse_tensor"):
        import_checkpoint(tmp_path / "sparse.pt", store)
    with pytest.raises(InvalidName, match="cannot name"):
        import_checkpoint(tmp_path / "a.pt", store, name="../out")
    monkeypatch.setattr(Admission, "check", _refuse)
    with pytest.raises(AdmissionRefused):
        import_checkpoint(tmp_path / "a.pt", store, name="b")

    assert sorted(os.listdir(store)) == before


def _refuse(self: Admission, store: object, *, prefix: str, name: str, size: int) -> None:
    raise AdmissionRefused("full", needed_bytes=size)


def test_a_source_that_changes_meanwhile_stores_nothing(tmp_path: Path) -> None:
    torch.save({"w": torch.ones(1)}, tmp_path / "a.pt")
    found = read_foreign(tmp_path / "a.pt")

    torch.save({"w": torch.zeros(1)}, tmp_path / "a.pt")

    with pytest.raises(ImportRefused, match="was changed"):
        store_foreign(found, tmp_path / "a.pt", open_store(tmp_path / "store"), ImportPlace())
    assert not list((tmp_path / "store").glob("*.tar"))


def test_keys_are_moved_and_left_out(tmp_path: Path) -> None:
    torch.save({"a": torch.ones(1), "b": 2}, tmp_path / "a.pt")
    found = read_foreign(tmp_path / "a.pt")

    moved = put_under(found, "model")
    smaller = leave_out(found, ["b"])

    assert list(moved.state) == ["model"] and [part.key for part in moved.taken] == ["model"]
    assert list(smaller.state) == ["a"] and smaller.left_out[-1].source == "b"
    with pytest.raises(ImportRefused, match="no key 'c'"):
        leave_out(found, ["c"])
