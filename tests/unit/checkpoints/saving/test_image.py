"""Images: the bytes of an archive around its tensors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chockstone.checkpoints import Archive, Checkpointer, verify_archive
from chockstone.checkpoints.restoring.restore import load_state
from support.archives import assert_same, open_file, write_archive
from support.tensors import arange, zeros


def test_archives_cost_under_one_percent_more_than_their_tensors(tmp_path: Path) -> None:
    state = {"model": {f"layer.{i}.weight": zeros(30_000) for i in range(500)}}
    with Checkpointer(tmp_path) as checkpointer:
        saved = checkpointer.save(state, step=1).result()

    assert saved.size_bytes < 1.01 * saved.tensor_bytes


def test_files_of_the_callers_are_members_of_the_archive(tmp_path: Path) -> None:
    path = write_archive(tmp_path, {"a": 1}, files={"adapter/config.json": b'{"r": 8}', "empty": b""})

    with open_file(path) as archive:
        assert archive.read("adapter/config.json") == b'{"r": 8}'
        assert archive.read("empty") == b""


@pytest.mark.parametrize("sizes", [(1024**2,), (3 * 1024**2 + 5, 0, 17), (4096, 2 * 1024**2, 5 * 1024**2 + 4096)])
@pytest.mark.parametrize("with_tensors", [True, False])
def test_files_of_every_size_come_back_beside_tensors(
    tmp_path: Path, sizes: tuple[int, ...], with_tensors: bool
) -> None:
    files = {f"file-{index}": np.random.default_rng(index).bytes(size) for index, size in enumerate(sizes)}
    state: dict[str, Any] = {"model": {"w": arange(5000, "int64")}} if with_tensors else {"x": 1}
    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(state, name="one", files=files).result()

    with Archive.open(tmp_path / "one.tar") as archive:
        assert {name: archive.read(name) for name in files} == files
        verify_archive(archive)
        assert_same(load_state(archive), state)
