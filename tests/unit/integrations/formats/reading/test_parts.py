from __future__ import annotations

import numpy as np
import pytest
import torch

from chockstone.integrations.formats.reading.parts import account, find_step, find_step_in_name


def test_each_key_is_counted_with_its_tensors() -> None:
    state = {"model": {"a": torch.ones(2), "b": [np.zeros(3)]}, "epoch": 3}

    counted = account(state, {"model": "m.safetensors"})

    assert counted == (("m.safetensors", "model", 2, 32), ("", "epoch", 0, 0))


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("checkpoint-500", 500),
        ("epoch=1-step=20.ckpt", 20),
        ("global_step300", 300),
        ("step_7.pt", 7),
        ("iter_0000100", 100),
        ("1200", 1200),
        ("model.pt", None),
        ("llama-3-8b", None),
        ("footstep-3", None),
    ],
)
def test_the_step_is_read_from_a_name(name: str, step: int | None) -> None:
    assert find_step_in_name(name)[0] == step


def test_the_step_is_read_from_a_state() -> None:
    assert find_step({"global_step": 7, "step": 3}) == (7, "the key 'global_step'")
    assert find_step({"step": torch.tensor(3), "iteration": -1}) == (None, "")
