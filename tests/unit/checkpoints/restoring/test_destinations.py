"""The memory that restored tensors go into."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from chockstone.checkpoints import Checkpointer
from chockstone.checkpoints.errors import (
    RestoreMismatch,
)
from chockstone.checkpoints.format.byte_runs import ByteRun
from chockstone.checkpoints.restoring.destinations import RestoreDestinations
from chockstone.checkpoints.restoring.restore import restore_state
from support.archives import assert_same, open_file, write_archive


@pytest.mark.parametrize(
    "target",
    [torch.zeros(4)[::2][:1], torch.zeros(3, 3)[:1, :1], torch.zeros(2, 2).t()[:, :1]],
    ids=["strided", "corner", "column"],
)
def test_a_restore_fills_a_view_of_any_strides(tmp_path: Path, target: torch.Tensor) -> None:
    state = {"model": {"x": torch.full(target.shape, 7.0)}}
    path = write_archive(tmp_path, state)

    with open_file(path) as archive:
        restore_state(archive, {"model": {"x": target}})

    assert_same(target, state["model"]["x"])


def test_a_part_of_another_size_than_its_bytes_is_refused(tmp_path: Path) -> None:
    """Bytes go straight to an address, so that nothing else would notice."""
    path = write_archive(tmp_path, {"model": {"x": torch.ones(8)}})

    with open_file(path) as archive, pytest.raises(ValueError, match="32 bytes are to be read into a tensor of 28"):
        RestoreDestinations(archive).use_box([ByteRun(0, 16, 16, 2)], torch.zeros(7), 0)


def test_a_target_on_the_meta_device_is_not_taken_for_a_place(tmp_path: Path) -> None:
    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save({"x": torch.ones(3)}, step=0).result()

        with pytest.raises(RestoreMismatch):
            checkpointer.restore({"x": torch.ones(3, device="meta")})


def test_a_target_in_column_order_is_filled_correctly(tmp_path: Path) -> None:
    value = np.arange(12.0).reshape(3, 4)
    target = np.zeros((3, 4), order="F")
    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save({"x": value}, step=0).result()

        checkpointer.restore({"x": target})

    assert np.array_equal(target, value)


def test_a_target_with_other_strides_is_filled_correctly(tmp_path: Path) -> None:
    value = torch.arange(12.0).reshape(3, 4)
    target = torch.zeros(4, 3).T
    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save({"x": value}, step=0).result()

        checkpointer.restore({"x": target})

    assert torch.equal(target, value)
