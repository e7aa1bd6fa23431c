"""The checkpoints of a Trainer: captured saves, names, metrics, and the end of a training."""

from __future__ import annotations

from pathlib import Path

import pytest

from chockstone.checkpoints.errors import CheckpointMissing
from chockstone.integrations.hf_trainer import TrainerCheckpoints, attach
from support.integrations.hf_trainers import tiny_trainer


def test_a_training_that_fails_leaves_its_saves_durable(tmp_path: Path) -> None:
    trainer = tiny_trainer(tmp_path / "output", max_steps=2)
    checkpoints = attach(trainer, tmp_path / "store", prefix="run-1")
    trainer.train()
    trainer.train_dataset = [{"input_ids": "broken"}]

    with pytest.raises((ValueError, TypeError, KeyError, RuntimeError)):
        trainer.train()

    assert checkpoints.last_save is not None
    assert checkpoints.last_save.done()
    assert (tmp_path / "store" / "run-1" / "step-00000002.tar").is_file()
    for name in ("step-00000002", "run-1/step-00000002"):
        assert "config.json" in checkpoints.export(tmp_path / name.replace("/", "-"), name=name)
    assert checkpoints.captured is None


def test_names_and_places_follow_the_prefix(tmp_path: Path) -> None:
    checkpoints = TrainerCheckpoints(tmp_path, prefix="run-1")

    assert checkpoints.location("run-1/step-00000003") == str(tmp_path / "run-1" / "step-00000003.tar")
    assert checkpoints.best_location({"best_global_step": 3}) is None
    assert checkpoints.resumed_at("anywhere") is None
    with pytest.raises(CheckpointMissing, match="no checkpoint to export"):
        checkpoints.export(tmp_path / "out")
    checkpoints.close()
