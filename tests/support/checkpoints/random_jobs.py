"""What ranks draw from their generators before and after a restore. A job gets its rank first."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import torch

from chockstone.checkpoints import Checkpointer, RandomState

Drawn = tuple[float, float, float, float, float]


def draw() -> Drawn:
    return random.random(), random.gauss(), np.random.rand(), float(np.random.randn()), torch.randn(()).item()


def seed(number: int) -> None:
    random.seed(number)
    np.random.seed(number)
    torch.manual_seed(number)


def save_and_draw(rank: int, place: Path, per_rank: bool) -> Drawn:
    """Save the generators, each rank's in its own state, and return what they draw next."""
    seed(rank)
    random.gauss()  # the generators now keep a normal number back
    np.random.randn()
    with Checkpointer(place, rank_timeout_seconds=30.0) as checkpointer:
        checkpointer.save({"random": RandomState(per_rank=per_rank)}, step=1).result()
    return draw()


def restore_and_draw(rank: int, place: Path) -> tuple[Drawn, str]:
    """What the generators draw after a restore, and what the receipt says of them."""
    seed(1000 + rank)
    with Checkpointer(place, rank_timeout_seconds=30.0) as checkpointer:
        receipt = checkpointer.restore({"random": RandomState(per_rank=True)})
    assert receipt is not None
    return draw(), receipt.parts[0].detail
