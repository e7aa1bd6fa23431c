"""Snapshots of states in host memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from chockstone.checkpoints import Checkpointer
from chockstone.checkpoints.format.tree import flatten
from chockstone.checkpoints.saving.snapshot import arrange
from support.archives import assert_same


@pytest.mark.parametrize("order", ["numpy-first", "torch-first"])
def test_a_value_may_change_from_numpy_to_torch_between_saves(tmp_path: Path, order: str) -> None:
    values: list[Any] = [np.arange(3.0), torch.arange(3, dtype=torch.float64)]
    if order == "torch-first":
        values.reverse()

    with Checkpointer(tmp_path) as checkpointer:
        for step, value in enumerate(values):
            checkpointer.save({"x": {"y": value}}, step=step).result()

            assert_same(checkpointer.load(), {"x": {"y": value}})


@pytest.mark.parametrize("odd", [torch.bool, torch.uint8, torch.float8_e5m2])
@pytest.mark.parametrize("raw", [torch.complex128, torch.complex32])
def test_every_tensor_is_copied_to_a_place_aligned_to_its_elements(raw: torch.dtype, odd: torch.dtype) -> None:
    leaves = flatten(
        {"m": {"a": torch.zeros(3, dtype=odd), "b": torch.zeros(48, dtype=torch.uint8).view(raw), "c": torch.ones(1)}}
    ).leaves

    places = arrange(leaves).places

    assert [place % leaf.dtype.itemsize for place, leaf in zip(places, leaves, strict=True)] == [0, 0, 0]
