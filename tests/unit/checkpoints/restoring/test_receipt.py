"""Receipts of restores."""

from __future__ import annotations

from pathlib import Path

from chockstone.checkpoints import Checkpointer
from support.training import Training


def test_the_receipt_says_what_came_back(tmp_path: Path) -> None:
    training = Training()
    training.step()
    with Checkpointer(tmp_path, prefix="run-1") as checkpointer:
        checkpointer.save(training.state(), step=1).result()

        receipt = checkpointer.restore(training.state())

    parts = {part.path: part for part in receipt.parts}
    assert (receipt.name, receipt.step, receipt.kind) == ("run-1/step-00000001", 1, "weights")
    assert parts["model"].tensors == len(training.model.state_dict())
    assert parts["model"].size_bytes == sum(t.nbytes for t in training.model.state_dict().values())
    assert parts["optimizer"].detail == "6 parameters with exp_avg, exp_avg_sq, step; step counts 1"
    assert parts["scheduler"].what == "CosineAnnealingLR"
    assert set(parts) == {"model", "optimizer", "scheduler", "random", "steps"}
    assert receipt.complete
    assert receipt.blocks_verified == receipt.blocks
    assert "run-1/step-00000001" in str(receipt)
