"""The global random generators, saved and restored."""

from __future__ import annotations

import random
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from chockstone.checkpoints import Checkpointer, RandomState
from chockstone.checkpoints.errors import RestoreFailed
from chockstone.checkpoints.restoring.random_state import join_ranks


def test_python_numpy_and_torch_draw_what_they_would_have_drawn(tmp_path: Path) -> None:
    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save({"random": RandomState()}, step=0).result()
        drawn = (random.random(), np.random.rand(), torch.rand(()).item())

        checkpointer.restore({"random": RandomState()})

    assert (random.random(), np.random.rand(), torch.rand(()).item()) == drawn


@pytest.mark.parametrize("position", [-1, 625, 2**31 - 1, 10**30, 1.5, None])
@pytest.mark.parametrize("per_rank", [False, True])
def test_a_position_outside_of_the_generator_of_numpy_is_refused(position: Any, *, per_rank: bool) -> None:
    """numpy takes it, and reads past its memory with the next number."""
    state = RandomState().state_dict()
    name, keys, *_ = state["numpy"]
    hostile = {**state, "numpy": (name, keys, position, 0, 0.0)}
    if per_rank:
        try:
            hostile = join_ranks([hostile])
        except struct.error:
            return  # no such row can be made
    before = np.random.get_state()[2]

    with pytest.raises(RestoreFailed, match="random state of numpy"):
        RandomState(per_rank=per_rank).load_state_dict(hostile)

    assert np.random.get_state()[2] == before


def test_other_words_than_those_of_a_generator_are_refused() -> None:
    state = RandomState().state_dict()

    for words in (np.zeros(3, np.uint32), np.zeros((624, 2), np.uint32), 5):
        with pytest.raises(RestoreFailed, match="random state of numpy"):
            RandomState().load_state_dict({**state, "numpy": ("MT19937", words, 0, 0, 0.0)})
