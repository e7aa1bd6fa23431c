"""Packages: a Trainer of either Lightning takes the plugin and the callback."""

from __future__ import annotations

from pathlib import Path

import lightning.pytorch
import pytest
import pytorch_lightning
import torch
from lightning.fabric import Fabric
from torch.utils.data import DataLoader

from chockstone.extras import ExtraMissing
from chockstone.integrations.lightning import ArchiveCheckpointIO, RandomStates, newest_checkpoint, packages

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # what Lightning says about every resumed run


class OtherModule(pytorch_lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(2, 2)

    def training_step(self, batch: torch.Tensor, _: int) -> torch.Tensor:
        loss: torch.Tensor = self.layer(batch).sum()
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def test_a_trainer_of_pytorch_lightning_saves_and_resumes(tmp_path: Path) -> None:
    steps = []
    for max_epochs in (1, 2):
        trainer = pytorch_lightning.Trainer(
            max_epochs=max_epochs,
            accelerator="cpu",
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            plugins=[ArchiveCheckpointIO()],
            callbacks=[RandomStates(), pytorch_lightning.callbacks.ModelCheckpoint(tmp_path, save_top_k=-1)],
        )
        trainer.fit(OtherModule(), DataLoader(torch.ones(3, 2)), ckpt_path=newest_checkpoint(tmp_path))
        steps.append(trainer.global_step)

    assert steps == [3, 6]
    assert len(list(tmp_path.glob("*.ckpt"))) == 2


def test_the_plugin_is_a_checkpoint_io_of_both() -> None:
    io = ArchiveCheckpointIO()

    assert isinstance(io, lightning.pytorch.plugins.CheckpointIO)
    assert isinstance(io, pytorch_lightning.plugins.CheckpointIO)


def test_without_lightning_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "is_installed", lambda _: False)
    monkeypatch.setattr("chockstone.extras.is_installed", lambda name: name != "lightning")

    with pytest.raises(ExtraMissing, match=r"chockstone\[lightning\]"):
        packages.require_lightning("this test")


def test_fabric_saves_and_loads_through_the_plugin(tmp_path: Path) -> None:
    io = ArchiveCheckpointIO()
    fabric = Fabric(accelerator="cpu", devices=1, plugins=[io])
    layer = torch.nn.Linear(2, 2)
    model, optimizer = fabric.setup(layer, torch.optim.SGD(layer.parameters(), lr=0.1))
    weight = layer.weight.detach().clone()

    fabric.save(tmp_path / "a.ckpt", {"model": model, "optimizer": optimizer, "step": 3})
    torch.nn.init.zeros_(layer.weight)
    state = {"model": model, "optimizer": optimizer, "step": 0}
    fabric.load(tmp_path / "a.ckpt", state)  # waits for the save
    io.teardown()

    assert state["step"] == 3
    assert torch.equal(layer.weight, weight)
