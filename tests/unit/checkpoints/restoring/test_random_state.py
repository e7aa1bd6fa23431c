"""The global random generators, saved and restored."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import torch

from chockstone.checkpoints import Checkpointer, RandomState


def test_python_numpy_and_torch_draw_what_they_would_have_drawn(tmp_path: Path) -> None:
    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save({"random": RandomState()}, step=0).result()
        drawn = (random.random(), np.random.rand(), torch.rand(()).item())

        checkpointer.restore({"random": RandomState()})

    assert (random.random(), np.random.rand(), torch.rand(()).item()) == drawn
