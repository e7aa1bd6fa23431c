"""A Lightning run to be killed: `python lightning_killed.py ROOT`. Saves every 4 of 20 steps."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import torch
from lightning.pytorch import seed_everything
from lightning.pytorch.callbacks import ModelCheckpoint

from chockstone.integrations.lightning import ArchiveCheckpointIO, RandomStates, newest_checkpoint
from support.integrations.lightning_runs import PositionedBatches, RecordingModule, make_trainer
from support.killed_training import report


class ReportingModule(RecordingModule):
    def training_step(self, batch: torch.Tensor, index: int) -> torch.Tensor:
        loss = super().training_step(batch, index)
        report(self.global_step + 1, loss.item())
        return loss


def main(root: Path) -> None:
    warnings.simplefilter("ignore")
    seed_everything(3, verbose=False)
    trainer = make_trainer(
        root,
        checkpoint=ModelCheckpoint(root, every_n_train_steps=4, save_top_k=-1),
        max_steps=20,
        plugins=[ArchiveCheckpointIO()],
        callbacks=[RandomStates()],
    )
    trainer.fit(ReportingModule(), PositionedBatches(), ckpt_path=newest_checkpoint(root))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
