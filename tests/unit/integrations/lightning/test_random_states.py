"""Random states: restored when a checkpoint is loaded, and once more inside an epoch."""

from __future__ import annotations

import logging
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader

from chockstone.checkpoints import RandomState
from chockstone.integrations.lightning import ArchiveCheckpointIO, RandomStates, newest_checkpoint
from support.integrations.lightning_runs import PositionedBatches, RecordingModule, make_trainer

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # what Lightning says about every resumed run


def fit(root: Path, steps: int, callbacks: list[Any]) -> RecordingModule:
    checkpoint = ModelCheckpoint(root, every_n_train_steps=2, save_top_k=-1)
    plugins = [ArchiveCheckpointIO()]
    trainer = make_trainer(root, checkpoint=checkpoint, plugins=plugins, callbacks=callbacks, max_steps=steps)
    model = RecordingModule()
    trainer.fit(model, PositionedBatches(), ckpt_path=newest_checkpoint(root))
    return model


def test_the_generators_of_python_and_torch_continue(tmp_path: Path) -> None:
    fit(tmp_path, 2, [RandomStates()])
    rows = ArchiveCheckpointIO().load_checkpoint(tmp_path)["random_states"]
    RandomState().load_state_dict(rows)
    expected = random.random(), torch.rand(1)
    drawn: list[Any] = []

    class Draw(RandomStates):
        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            super().on_train_start(trainer, pl_module)
            drawn.extend([random.random(), torch.rand(1)])

    random.seed(0)
    fit(tmp_path, 3, [Draw()])

    assert tuple(drawn) == expected


def test_a_shuffled_loader_continues_after_an_epoch_as_if_left_alone(tmp_path: Path) -> None:
    def train(root: Path, epochs: int, seed: int) -> dict[int, float]:
        torch.manual_seed(seed)
        checkpoint = ModelCheckpoint(root, save_top_k=-1)
        plugins = [ArchiveCheckpointIO()]
        trainer = make_trainer(
            root, checkpoint=checkpoint, plugins=plugins, callbacks=[RandomStates()], max_epochs=epochs
        )
        model = RecordingModule()
        loader = DataLoader(torch.arange(48.0).reshape(12, 4).cos(), batch_size=2, shuffle=True)
        trainer.fit(model, loader, ckpt_path=newest_checkpoint(root))
        return model.losses

    alone = train(tmp_path / "alone", 3, seed=1)
    train(tmp_path / "run", 1, seed=1)

    resumed = train(tmp_path / "run", 3, seed=2)

    assert resumed == {step: loss for step, loss in alone.items() if step > 6}


def test_a_checkpoint_without_random_states_is_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    fit(tmp_path, 2, [])

    with caplog.at_level(logging.WARNING, "chockstone"):
        fit(tmp_path, 3, [RandomStates()])

    assert "random states are not in the checkpoint" in caplog.text
