"""Accelerate on two ranks of torchrun: trains with DDP, resumes, and compares the losses of each rank."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import ProjectConfiguration, set_seed

from chockstone.checkpoints import RestoreReceipt
from chockstone.integrations.accelerate import ArchiveAccelerator


def make(root: Path, seed: int) -> tuple[Any, Any, Any]:
    set_seed(seed)
    project = ProjectConfiguration(str(root), automatic_checkpoint_naming=True)
    accelerator = ArchiveAccelerator(cpu=True, project_config=project)
    model = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Dropout(0.2), torch.nn.Linear(6, 4))
    return accelerator, *accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=1e-2))


def train(accelerator: Any, model: Any, optimizer: Any, steps: int) -> list[float]:
    losses = []
    torch.rand(accelerator.process_index)  # from here on the ranks draw different numbers
    for _ in range(steps):
        loss = model(torch.randn(2, 4)).pow(2).mean()
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def main(root: Path) -> None:
    accelerator, model, optimizer = make(root, seed=3)
    train(accelerator, model, optimizer, 2)
    accelerator.save_state()
    alone = train(accelerator, model, optimizer, 2)
    accelerator.wait_for_saves()
    accelerator, model, optimizer = make(root, seed=4)
    receipt: RestoreReceipt = accelerator.load_state()
    assert train(accelerator, model, optimizer, 2) == alone
    print(f"the losses are the same after {receipt.name}", flush=True)
    accelerator.end_training()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
