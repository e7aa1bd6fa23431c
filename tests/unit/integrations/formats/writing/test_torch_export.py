from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from chockstone.integrations.formats.writing.torch_export import write_torch_file
from support.integrations.foreign import same, training_state


def test_weights_only_opens_the_file_and_finds_every_value(tmp_path: Path) -> None:
    state = training_state()

    counts = write_torch_file(state, tmp_path / "a.pt")

    loaded = torch.load(tmp_path / "a.pt", weights_only=True)
    plain = ("model", "optimizer", "epoch", "losses", "half", "note", "nothing")
    assert all(same(loaded[key], state[key]) for key in plain)
    assert np.array_equal(loaded["rng"]["numpy"][1].numpy(), state["rng"]["numpy"][1])
    assert loaded["names"] == {"a", "b"}
    assert counts == {"numpy array": 1, "frozenset": 1, "numpy number": 1}
    mapped = torch.load(tmp_path / "a.pt", weights_only=True, mmap=True)
    assert same(mapped["model"], state["model"])


def test_a_tied_tensor_is_written_once(tmp_path: Path) -> None:
    memory = torch.zeros(1_000_000)

    write_torch_file({"a": memory, "b": memory[:]}, tmp_path / "a.pt")

    assert (tmp_path / "a.pt").stat().st_size < 4_100_000
