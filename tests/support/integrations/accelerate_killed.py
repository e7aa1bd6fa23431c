"""An Accelerate loop to be killed: `python accelerate_killed.py ROOT`. Saves every 4 of 20 steps."""

from __future__ import annotations

import sys

import torch
from accelerate import DataLoaderConfiguration
from accelerate.utils import ProjectConfiguration, set_seed
from torch.utils.data import DataLoader, TensorDataset

from chockstone.integrations.accelerate import ArchiveAccelerator
from support.killed_training import report


class Progress:
    def __init__(self) -> None:
        self.step = 0

    def state_dict(self) -> dict[str, int]:
        return {"step": self.step}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.step = state["step"]


def main(root: str) -> None:
    set_seed(3)
    accelerator = ArchiveAccelerator(
        cpu=True,
        dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True),
        project_config=ProjectConfiguration(root, automatic_checkpoint_naming=True, total_limit=3),
    )
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.2), torch.nn.Linear(8, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    data = TensorDataset(torch.arange(96.0).reshape(24, 4).cos())
    loader = DataLoader(data, batch_size=4, shuffle=True, generator=torch.Generator())
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    progress = Progress()
    accelerator.register_for_checkpointing(progress)
    accelerator.load_state()
    while progress.step < 20:
        loader.set_epoch(progress.step // len(loader))
        for (batch,) in accelerator.skip_first_batches(loader, progress.step % len(loader)):
            loss = model(batch).pow(2).mean()
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            progress.step += 1
            report(progress.step, loss.item())
            if progress.step % 4 == 0:
                accelerator.save_state()
            if progress.step == 20:
                break
    accelerator.end_training()


if __name__ == "__main__":
    main(sys.argv[1])
