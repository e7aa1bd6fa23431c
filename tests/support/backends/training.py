"""A batch, a step, and what the tests of training ask of a run."""

from __future__ import annotations

from typing import Any

import torch

from chockstone.backends.training.optimizers import OptimStep
from chockstone.backends.training.run import TrainedRun
from support.tiny_models import apply, datum

BATCH = tuple(datum(n, seed=n, inputs=("weights",)) for n in (9, 4, 17, 17, 2, 30))
STEP = OptimStep(learning_rate=0.01, weight_decay=0.1, grad_clip_norm=1.0)


def bits(run: TrainedRun) -> list[Any]:
    """Everything a run holds, as bytes."""
    state = run.state()
    tensors = [*state["weights"].values(), *state["optimizer"].values(), state["gradient"]]
    return [t.numpy().tobytes() if isinstance(t, torch.Tensor) else t for t in tensors]


def train(run: TrainedRun, *, steps: int, first: int = 0) -> list[float]:
    losses = []
    for step in range(first, first + steps):
        losses.append(apply(run, datum(11, seed=step), datum(6, seed=step + 100)).metrics["loss:sum"])
        losses.append(apply(run, datum(8, seed=step + 200)).metrics["loss:sum"])
        run.optim_step(STEP)
    return losses
