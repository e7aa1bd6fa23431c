from __future__ import annotations

from collections import OrderedDict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from chockstone.checkpoints import Checkpointer, open_store
from chockstone.checkpoints.errors import CheckpointError, CheckpointMissing, UnstorableValue
from chockstone.checkpoints.format.shards import Pieces
from chockstone.checkpoints.state_archive import write_state
from support.tensors import random_bytes

NOW = datetime(2026, 1, 2, tzinfo=UTC)


def varied_state() -> dict[str, Any]:
    tied = torch.randn(300, 7, dtype=torch.bfloat16)
    return {
        "model": OrderedDict(a=tied, b=tied, wide=torch.randn(64, 33).t(), empty=torch.empty(0, 4)),
        "optimizer": {"state": {0: {"step": torch.tensor(3.0), "exp_avg": torch.randn(5)}}, "lr": 1e-3},
        "numpy": (np.arange(9, dtype=np.uint32), np.float64(0.5)),
        "conjugate": torch.randn(4, dtype=torch.complex64).conj(),
        "large": random_bytes(40_000_000, seed=1),
    }


def test_the_archive_is_byte_for_byte_the_one_that_a_checkpointer_saves(tmp_path: Path) -> None:
    state = varied_state()
    with Checkpointer(tmp_path / "saved", now=lambda: NOW) as checkpointer:
        checkpointer.save(state, step=5, metadata={"a": 1}, files={"config.json": b"{}"})

    saved = write_state(
        open_store(tmp_path / "written"),
        "step-00000005",
        state,
        step=5,
        metadata={"a": 1},
        files={"config.json": b"{}"},
        created_at=NOW,
    )

    written = (tmp_path / "written/step-00000005.tar").read_bytes()
    assert written == (tmp_path / "saved/step-00000005.tar").read_bytes()
    assert saved.size_bytes == len(written)


def test_a_failing_check_leaves_nothing(tmp_path: Path) -> None:
    planned: list[int] = []

    def check() -> None:
        raise CheckpointError("the source has changed")

    store = open_store(tmp_path)
    with pytest.raises(CheckpointError, match="has changed"):
        write_state(store, "a", {"w": torch.ones(3)}, created_at=NOW, on_plan=planned.append, check=check)

    assert len(planned) == 1
    with pytest.raises(CheckpointMissing):
        store.stat("a")
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_a_sharded_tensor_is_refused(tmp_path: Path) -> None:
    part = Pieces((4,), torch.float32, [(0, torch.ones(2))])

    with pytest.raises(UnstorableValue, match="sharded"):
        write_state(open_store(tmp_path), "a", {"w": part}, created_at=NOW)
