from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
import torch

from chockstone.checkpoints import Archive, Checkpointer, load_state, open_store
from chockstone.checkpoints.errors import UnstorableValue
from chockstone.checkpoints.format.deferred_tensor import DeferredTensor
from chockstone.checkpoints.state_archive import write_state

NOW = datetime(2030, 1, 1, tzinfo=UTC)
NUMBERS = np.arange(6, dtype=np.float32).reshape(2, 3)


def test_readers_get_a_torch_tensor(tmp_path: Path) -> None:
    store = open_store(tmp_path)

    write_state(store, "a", {"weights": {"w": DeferredTensor((2, 3), lambda: NUMBERS)}}, created_at=NOW)

    with Archive(store.open("a")) as archive:
        loaded = load_state(archive)["weights"]["w"]
    assert torch.equal(loaded, torch.from_numpy(NUMBERS))


def test_the_archive_is_that_of_the_tensor(tmp_path: Path) -> None:
    for name, value in (("deferred", DeferredTensor((2, 3), lambda: NUMBERS)), ("tensor", torch.from_numpy(NUMBERS))):
        write_state(open_store(tmp_path / name), "a", {"weights": {"w": value}}, created_at=NOW)

    assert (tmp_path / "deferred/a.tar").read_bytes() == (tmp_path / "tensor/a.tar").read_bytes()


def test_other_numbers_than_announced_are_an_error(tmp_path: Path) -> None:
    store = open_store(tmp_path)

    with pytest.raises(ValueError, match="was announced"):
        write_state(store, "a", {"weights": {"w": DeferredTensor((3, 2), lambda: NUMBERS)}}, created_at=NOW)

    assert not list(store.entries())


def test_a_live_state_cannot_hold_one(tmp_path: Path) -> None:
    with Checkpointer(tmp_path) as checkpointer, pytest.raises(UnstorableValue, match="DeferredTensor"):
        checkpointer.save({"w": DeferredTensor((2, 3), lambda: NUMBERS)}, step=1)
