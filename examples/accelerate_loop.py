"""Train with Accelerate: `save_state` writes archives in the background, and a killed run resumes with the same losses.

Run it: `python examples/accelerate_loop.py ./accelerate-run`. Kill it with `kill -9` and run it again: it resumes
from the newest checkpoint that is not damaged. `accelerate launch` starts it on several processes, which save one file
together.
"""

from __future__ import annotations

import argparse
import logging
import time

import torch
from accelerate import DataLoaderConfiguration
from accelerate.utils import ProjectConfiguration, set_seed
from torch.utils.data import DataLoader, TensorDataset

from chockstone.integrations.accelerate import ArchiveAccelerator

WIDTH, BATCH, SAMPLES = 16, 8, 192


class Progress:
    """Where the loop is. Registered with the accelerator, so that it is part of every checkpoint."""

    def __init__(self) -> None:
        self.step = 0  # of all steps
        self.batch = 0  # of this epoch

    def state_dict(self) -> dict[str, int]:
        return {"step": self.step, "batch": self.batch}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.step, self.batch = state["step"], state["batch"]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("root", help="directory of the run; checkpoints are in ROOT/checkpoints")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--save-every", type=int, default=10)
    parser.add_argument(
        "--pause", type=float, default=0.05, metavar="SECONDS", help="extra time per step (default: 0.05)"
    )
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")  # the receipt says what was restored

    set_seed(7)
    accelerator = ArchiveAccelerator(
        cpu=True,
        dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True),  # an epoch can be shuffled again
        project_config=ProjectConfiguration(arguments.root, automatic_checkpoint_naming=True, total_limit=3),
    )
    words = torch.randn(SAMPLES, WIDTH)
    generator = torch.Generator().manual_seed(7)  # so that making an iterator draws nothing from the global one
    model = torch.nn.Sequential(
        torch.nn.Linear(WIDTH, 64), torch.nn.GELU(), torch.nn.Dropout(0.1), torch.nn.Linear(64, WIDTH)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)
    loader = DataLoader(TensorDataset(words), batch_size=BATCH, shuffle=True, generator=generator)
    model, optimizer, scheduler, loader = accelerator.prepare(model, optimizer, scheduler, loader)
    progress = Progress()
    accelerator.register_for_checkpointing(progress)

    if accelerator.load_state() is not None:  # None: there is no checkpoint yet
        accelerator.print(f"resumed after step {progress.step}", flush=True)
    while progress.step < arguments.steps:
        for (batch,) in accelerator.skip_first_batches(loader, progress.batch):
            loss = (model(batch) - batch.flip(1)).pow(2).mean()
            accelerator.backward(loss)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            progress.step, progress.batch = progress.step + 1, progress.batch + 1
            accelerator.print(f"step {progress.step} loss {loss.item()!r}", flush=True)
            time.sleep(arguments.pause)
            if progress.step % arguments.save_every == 0:
                accelerator.save_state()
            if progress.step == arguments.steps:
                break
        else:
            loader.set_epoch(loader.iteration + 1)  # a loader that skips counts for itself
            progress.batch = 0
    accelerator.end_training()


if __name__ == "__main__":
    main()
