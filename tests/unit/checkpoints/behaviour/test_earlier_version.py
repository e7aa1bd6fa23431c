"""Archives of an earlier version are verified and restored by this one."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from chockstone.checkpoints import Checkpointer

EARLIER = Path(__file__).parents[3] / "fixtures" / "version-0.1.0" / "archives"


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return Path(shutil.copytree(EARLIER, tmp_path / "archives"))


def test_an_archive_of_an_earlier_version_loads_with_every_value(store: Path) -> None:
    with Checkpointer(store) as checkpointer:
        state = checkpointer.load()

    assert sorted(state) == ["facts", "half", "model", "optimizer", "tokens"]
    assert state["facts"] == {"epoch": 3, "name": "é", "pair": (1, 2.5), "none": None}
    assert state["half"].dtype == torch.bfloat16
    assert state["half"].tolist() == [1.5, -2.0]
    assert np.array_equal(np.asarray(state["tokens"]), np.arange(5))
    assert state["optimizer"]["param_groups"][0]["lr"] == 0.5


def test_an_archive_of_an_earlier_version_restores_a_model_and_its_optimizer(store: Path) -> None:
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.5)

    with Checkpointer(store) as checkpointer:
        loaded = checkpointer.load()
    model.load_state_dict(loaded["model"])
    optimizer.load_state_dict(loaded["optimizer"])

    assert torch.equal(optimizer.state_dict()["state"][0]["step"], torch.tensor(1.0))
    # AdamW moved every weight of 0 to 5 by its decay and by the learning rate, against a positive gradient.
    expected = torch.arange(6.0).reshape(2, 3) * (1 - 0.5 * 0.01) - 0.5
    assert torch.allclose(model.weight, expected, atol=1e-4)
