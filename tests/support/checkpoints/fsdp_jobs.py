"""Trainings that ranks share, as users write them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed as distributed
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import support.checkpoints.ranked_jobs as jobs
from chockstone.checkpoints import RandomState


class Tied(nn.Module):
    """Small, with a tied head and a parameter of fewer rows than there are ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 24)
        self.blocks = nn.ModuleList([nn.Linear(24, 24) for _ in range(3)])
        self.few = nn.Parameter(torch.ones(2, 24))
        self.head = nn.Linear(24, 50, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens_BT: torch.Tensor) -> torch.Tensor:
        hidden_BTD = self.embed(tokens_BT) * self.few.sum(0)
        for block in self.blocks:
            hidden_BTD = torch.relu(block(hidden_BTD))
        logits: torch.Tensor = self.head(hidden_BTD)
        return logits


def make(divided: bool) -> tuple[Any, torch.optim.Optimizer]:
    torch.manual_seed(3)
    model: Any = Tied()
    if divided:
        for block in model.blocks:
            fully_shard(block)
        fully_shard(model)
    return model, torch.optim.AdamW(model.parameters(), lr=0.01)


def train(model: Any, optimizer: torch.optim.Optimizer, steps: range) -> list[float]:
    losses = []
    for step in steps:
        tokens_BT = torch.arange(step, step + 12).view(2, 6) % 50
        loss = model(tokens_BT).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.item()))
    return losses


def fsdp(rank: int, where: Path, what: str) -> list[float]:
    """Train and save, or restore into a new model and optimizer, and train on."""
    model, optimizer = make(divided=distributed.is_initialized())
    state: dict[str, Any] = {"model": model, "optimizer": optimizer, "random": RandomState()}
    with jobs.open_checkpointer(where) as checkpointer:
        if what == "save":
            train(model, optimizer, range(3))
            checkpointer.save(state, step=3)
        else:
            checkpointer.restore(state)
        return train(model, optimizer, range(3, 6))


def state_dicts(rank: int, where: Path) -> bool:
    """Through torch's own get_state_dict, whose optimizer state goes by names."""
    model, optimizer = make(divided=True)
    train(model, optimizer, range(2))
    weights, moments = get_state_dict(model, optimizer)
    with jobs.open_checkpointer(where) as checkpointer:
        checkpointer.save({"model": weights, "optimizer": moments}, step=2).result()
        into = jobs.zeroed({"model": weights, "optimizer": moments})
        checkpointer.restore(into)
    return jobs.is_same(into["model"], weights) and jobs.is_same(into["optimizer"]["state"], moments["state"])


def ddp(rank: int, where: Path, what: str) -> list[float]:
    model, optimizer = make(divided=False)
    wrapped = DistributedDataParallel(model)
    with jobs.open_checkpointer(where) as checkpointer:
        if what == "save":
            train(wrapped, optimizer, range(3))
            checkpointer.save({"model": model, "optimizer": optimizer}, step=3)
        else:
            checkpointer.restore({"model": model, "optimizer": optimizer})
        return train(wrapped, optimizer, range(3, 6))
