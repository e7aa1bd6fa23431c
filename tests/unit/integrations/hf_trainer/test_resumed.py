"""A checkpoint to resume from hands out its parts one after the other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from chockstone.checkpoints import Checkpointer, RandomState
from chockstone.checkpoints.errors import CheckpointMissing
from chockstone.integrations.hf_trainer.resumed import ResumedCheckpoint


@pytest.fixture
def checkpointer(tmp_path: Path) -> Checkpointer:
    model = torch.nn.Linear(3, 3)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    checkpointer = Checkpointer(tmp_path)
    state = {
        "model": model,
        "optimizer": optimizer,
        "scheduler": torch.optim.lr_scheduler.ConstantLR(optimizer),
        "random": RandomState(per_rank=True),
        "trainer_state": {"global_step": 1},
    }
    checkpointer.save(state, step=1).result()
    return checkpointer


def test_parts_are_given_in_turn_and_again_when_they_are_asked_for_again(checkpointer: Checkpointer) -> None:
    resumed = ResumedCheckpoint(checkpointer, None, rewrite=lambda state: {**state, "seen": True})
    model = torch.nn.Linear(3, 3)
    resumed.restore_model(model)
    drawn = torch.rand(())

    for _ in range(2):  # the Trainer begins again after it was out of memory
        optimizer = torch.optim.AdamW(model.parameters())
        resumed.load_optimizer_and_scheduler(optimizer, torch.optim.lr_scheduler.ConstantLR(optimizer))
        assert [int(state["step"]) for state in optimizer.state.values()] == [1, 1]
    resumed.load_scaler(None)
    for _ in range(2):
        resumed.load_random()
        again = torch.rand(())

    assert json.loads((resumed.directory / "trainer_state.json").read_text()) == {"global_step": 1, "seen": True}
    assert resumed.receipt is not None
    assert resumed.receipt.step == 1
    assert drawn != again
    resumed.close()
    assert not resumed.directory.exists()


def test_checkpoints_that_vanish_before_they_are_read_are_an_error(tmp_path: Path) -> None:
    resumed = ResumedCheckpoint(Checkpointer(tmp_path), None, rewrite=dict[str, Any])

    with pytest.raises(CheckpointMissing, match="deleted while"):
        resumed.restore_model(torch.nn.Linear(1, 1))
    resumed.close()
