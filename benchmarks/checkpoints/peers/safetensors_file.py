"""safetensors: one file, read back without any verification (the format has none)."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from benchmarks.checkpoints.contestant import Contestant, FreshNames
from benchmarks.checkpoints.states import State
from benchmarks.harness.disk import fsync_tree

PAGE_BYTES = 4096


def contestants(directory: Path) -> list[Contestant]:
    names = FreshNames(directory)

    def save(state: State) -> Path:
        path = names.next("safetensors", ".safetensors")
        save_file(state.flat(), path)
        fsync_tree(path)
        return path

    def restore(path: Path, into: State) -> None:
        loaded = load_file(path)
        for name, tensor in into.flat().items():
            tensor.copy_(loaded[name])

    def load_and_touch(path: Path, _into: State) -> None:
        """``load_file`` may only map the file, so touch one byte of every page to have it really read."""
        for tensor in load_file(path).values():
            tensor.reshape(-1).view(torch.uint8)[::PAGE_BYTES].sum()

    return [
        Contestant("safetensors", save=save, restore=restore),
        Contestant("safetensors, load_file only", restore=load_and_touch, save=save, in_place=False),
    ]
