"""Train with Lightning: the Trainer saves archives in the background, and resumes after a kill with the same losses.

Run it: `python examples/lightning_trainer.py ./lightning-run`. Kill it with `kill -9` and run it again: it resumes
from the newest checkpoint that is not damaged.
"""

from __future__ import annotations

import argparse
import logging
import time
from collections.abc import Iterator
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import ModelCheckpoint

from chockstone.integrations.lightning import ArchiveCheckpointIO, RandomStates, newest_checkpoint

WIDTH, BATCH = 16, 8


class Batches:
    """A loader that knows its position: Lightning saves it and restores it, so that no batch comes twice."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.epoch = 0
        self.position = 0

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[torch.Tensor]:
        if self.position == self.count:
            self.epoch, self.position = self.epoch + 1, 0
        while self.position < self.count:
            self.position += 1
            seed = 1000 * self.epoch + self.position
            yield torch.randn(BATCH, WIDTH, generator=torch.Generator().manual_seed(seed))

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self.epoch, "position": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.epoch, self.position = state["epoch"], state["position"]


class Reverser(LightningModule):
    """Learns to reverse its input. Dropout draws from the generator that `RandomStates` restores."""

    def __init__(self, hidden: int = 64, pause: float = 0.0) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.pause = pause
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(WIDTH, hidden), torch.nn.GELU(), torch.nn.Dropout(0.1), torch.nn.Linear(hidden, WIDTH)
        )

    def training_step(self, batch: torch.Tensor, _: int) -> torch.Tensor:
        loss: torch.Tensor = (self.layers(batch) - batch.flip(1)).pow(2).mean()
        print(f"step {self.global_step + 1} loss {loss.item()!r}", flush=True)
        time.sleep(self.pause)
        return loss

    def configure_optimizers(self) -> Any:  # Any: one of the many forms that Lightning takes
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        return [optimizer], [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("root", help="directory of the checkpoints")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--save-every", type=int, default=10)
    parser.add_argument(
        "--pause", type=float, default=0.05, metavar="SECONDS", help="extra time per step (default: 0.05)"
    )
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")  # the receipt says what was restored

    seed_everything(7)
    trainer = Trainer(
        max_steps=arguments.steps,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        plugins=[ArchiveCheckpointIO()],
        callbacks=[
            RandomStates(),
            ModelCheckpoint(arguments.root, every_n_train_steps=arguments.save_every, save_top_k=-1),
        ],
    )
    trainer.fit(Reverser(pause=arguments.pause), Batches(24), ckpt_path=newest_checkpoint(arguments.root))


if __name__ == "__main__":
    main()
