"""``torch.save`` and ``torch.load(weights_only=True)``: one pickled zip file."""

from __future__ import annotations

from pathlib import Path

import torch

from benchmarks.checkpoints.contestant import Contestant, FreshNames
from benchmarks.checkpoints.states import State
from benchmarks.harness.disk import fsync_tree


def contestants(directory: Path) -> list[Contestant]:
    names = FreshNames(directory)

    def save(state: State) -> Path:
        path = names.next("torch-save", ".pt")
        torch.save(state.tree, path)
        fsync_tree(path)
        return path

    def restore(path: Path, into: State) -> None:
        loaded = torch.load(path, weights_only=True, mmap=False)
        for group, tensors in into.tree.items():
            for name, tensor in tensors.items():
                tensor.copy_(loaded[group][name])

    return [Contestant("torch.save", save=save, restore=restore)]
