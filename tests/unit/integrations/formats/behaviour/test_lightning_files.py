"""Checkpoints that a real Lightning Trainer wrote are imported whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from chockstone.checkpoints import Checkpointer
from chockstone.integrations.formats.reading.recognition import read_foreign
from support.cli.store_commands import run
from support.integrations.foreign import same

lightning = pytest.importorskip("lightning.pytorch")


class Module(lightning.LightningModule):  # type: ignore[misc, name-defined]  # it comes from importorskip
    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.net = torch.nn.Linear(width, 1)

    def training_step(self, batch: torch.Tensor, _: int) -> Any:
        return self.net(batch).square().mean()

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.1)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1)]


@pytest.mark.filterwarnings("ignore")  # Lightning warns of workers, of loggers and of its own imports
def test_all_checkpoints_of_a_training_are_imported_with_their_steps(tmp_path: Path) -> None:
    callback = lightning.callbacks.ModelCheckpoint(
        dirpath=tmp_path / "ckpt", every_n_train_steps=2, save_top_k=-1, save_last="link"
    )
    trainer = lightning.Trainer(
        max_steps=4,
        accelerator="cpu",
        callbacks=[callback],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Module(), torch.utils.data.DataLoader(torch.randn(8, 4), batch_size=2))

    result = run("import", tmp_path / "ckpt", tmp_path / "store", "--prefix", "run", "--all")

    assert (result.exit_code, result.stderr) == (0, "")
    assert "2 checkpoints imported, 0 failed" in result.stdout
    files = sorted(path for path in (tmp_path / "ckpt").iterdir() if not path.is_symlink())
    assert [read_foreign(path).format for path in files] == ["lightning", "lightning"]
    with Checkpointer(tmp_path / "store", prefix="run") as checkpointer:
        names = [each.name for each in checkpointer.checkpoints()]
        loaded = checkpointer.load()
    assert names == ["run/step-00000002", "run/step-00000004"]
    assert same(loaded, torch.load(files[-1], weights_only=True))
