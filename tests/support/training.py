"""A tiny real training run, for tests that save and restore one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from chockstone.checkpoints import RandomState


class Training:
    """A small network with dropout, its optimizer and schedule; ``step`` draws its own batch."""

    def __init__(
        self,
        *,
        seed: int = 0,
        width: int = 16,
        optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.AdamW,
        scheduler: Callable[..., Any] | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        torch.manual_seed(seed)
        self.model = torch.nn.Sequential(
            torch.nn.Linear(width, 2 * width),
            torch.nn.BatchNorm1d(2 * width),
            torch.nn.ReLU(),
            torch.nn.Dropout(0.5),
            torch.nn.Linear(2 * width, width),
        ).to(dtype)
        self.width = width
        self.dtype = dtype
        self.optimizer = optimizer(self.model.parameters(), lr=0.05)
        make_scheduler = scheduler or (lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 50))
        self.scheduler = make_scheduler(self.optimizer)
        self.steps = 0

    def step(self) -> float:
        batch = torch.randn(8, self.width, dtype=self.dtype)
        loss = (self.model(batch) - batch).pow(2).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        if isinstance(self.scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
            self.scheduler.step(loss.item())
        else:
            self.scheduler.step()
        self.steps += 1
        return loss.item()

    def state(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "optimizer": self.optimizer,
            "scheduler": self.scheduler,
            "random": RandomState(),
            "steps": self.steps,
        }

    def bits(self) -> list[bytes]:
        """Every weight, buffer and moment, as bytes."""
        tensors = list(self.model.state_dict().values())
        for state in self.optimizer.state_dict()["state"].values():
            tensors += [value for _, value in sorted(state.items()) if isinstance(value, torch.Tensor)]
        return [tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes() for tensor in tensors]
