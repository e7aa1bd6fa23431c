"""Small Lightning runs: a module that records its losses, a loader that knows its position, a quiet Trainer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint

WIDTH = 4


class PositionedBatches:
    """Six batches per epoch. Drawn from the global generator, so that a lost random state shows."""

    def __init__(self, count: int = 6) -> None:
        self.count = count
        self.position = 0

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[torch.Tensor]:
        torch.rand(1)  # as a DataLoader draws the seed of its workers
        return self._batches()

    def _batches(self) -> Iterator[torch.Tensor]:
        self.position %= self.count
        while self.position < self.count:
            self.position += 1
            yield torch.randn(2, WIDTH)

    def state_dict(self) -> dict[str, int]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.position = state["position"]


class RecordingModule(LightningModule):
    def __init__(self, hidden: int = 8) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(WIDTH, hidden), torch.nn.Dropout(0.2), torch.nn.Linear(hidden, WIDTH)
        )
        self.losses: dict[int, float] = {}

    def training_step(self, batch: torch.Tensor, _: int) -> torch.Tensor:
        loss = self.layers(batch).pow(2).mean()
        self.losses[self.global_step + 1] = loss.item()
        self.log("loss", loss)
        return loss

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)]


def make_trainer(root: Path, *, checkpoint: ModelCheckpoint | None = None, **options: Any) -> Trainer:
    callbacks = [*options.pop("callbacks", ()), *([checkpoint] if checkpoint is not None else ())]
    return Trainer(
        **{
            "default_root_dir": root,
            "accelerator": "cpu",
            "devices": 1,
            "logger": False,
            "enable_progress_bar": False,
            "enable_model_summary": False,
            "enable_checkpointing": checkpoint is not None,
            "callbacks": callbacks,
            **options,
        }
    )
