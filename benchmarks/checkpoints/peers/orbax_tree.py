"""orbax-checkpoint on numpy views of the tensors: the sync checkpointer and the async standard one."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import numpy as np
import orbax.checkpoint as orbax  # type: ignore[import-untyped]  # it has no types
import torch
from numpy.typing import NDArray

from benchmarks.checkpoints.contestant import Contestant, FreshNames
from benchmarks.checkpoints.states import State
from benchmarks.harness.disk import fsync_tree

Arrays = dict[str, dict[str, NDArray[np.float32]]]


def contestants(directory: Path) -> list[Contestant]:
    logging.getLogger("absl").setLevel(logging.ERROR)
    names = FreshNames(directory)
    synchronous = orbax.Checkpointer(orbax.StandardCheckpointHandler())
    background = orbax.StandardCheckpointer()

    def save(state: State) -> Path:
        path = names.next("orbax")
        synchronous.save(path, args=orbax.args.StandardSave(_arrays(state)))
        fsync_tree(path)
        return path

    def start(state: State) -> Callable[[], Path]:
        path = names.next("orbax-async")
        background.save(path, _arrays(state))

        def wait() -> Path:
            background.wait_until_finished()
            fsync_tree(path)
            return path

        return wait

    def restore(path: Path, into: State) -> None:
        loaded = synchronous.restore(path, args=orbax.args.StandardRestore(_arrays(into)))
        for group, tensors in into.tree.items():
            for name, tensor in tensors.items():
                tensor.copy_(torch.from_numpy(loaded[group][name]))

    return [
        Contestant("orbax", save=save, restore=restore, close=synchronous.close),
        Contestant("orbax async", start=start, restore=restore, close=background.close),
    ]


def _arrays(state: State) -> Arrays:
    return {group: {name: tensor.numpy() for name, tensor in tensors.items()} for group, tensors in state.tree.items()}
