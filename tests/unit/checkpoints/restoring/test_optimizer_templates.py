from __future__ import annotations

from pathlib import Path

import torch

from chockstone.checkpoints.format.dtypes import Dtype
from chockstone.checkpoints.format.tree import TensorReference
from chockstone.checkpoints.restoring.optimizer_templates import add_templates


def unused(reference: TensorReference) -> tuple[Dtype, tuple[int, ...]]:
    raise AssertionError(f"{reference} was looked up")


def test_an_optimizer_of_whole_parameters_needs_no_templates(tmp_path: Path) -> None:
    optimizer = torch.optim.Adam([torch.nn.Parameter(torch.zeros(3))])
    live_state = optimizer.state_dict()
    saved = {"state": {0: {"exp_avg": TensorReference("optimizer", "0.exp_avg", None, None, "torch")}}}

    assert add_templates(saved, live_state, optimizer, unused) is live_state


def test_what_is_no_optimizer_is_left_alone() -> None:
    live_state = {"epoch": 3}

    assert add_templates({"epoch": 4}, live_state, object(), unused) is live_state
