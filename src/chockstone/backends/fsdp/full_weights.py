"""Full fine-tuning on a sharded model: each process trains its own rows of every weight.

The trained copy is float32. During a micro-batch it replaces the base model's shards, cast to the model's own type.
FSDP gathers whole weights from the shards and scatters each gradient back to its rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch

from chockstone.backends.fsdp.model_shards import ModelShards
from chockstone.backends.fsdp.parameters import ShardedParameters
from chockstone.backends.training.full import ModelCopy


class ShardedWeights:
    def __init__(self, shards: ModelShards) -> None:
        self._shards = shards
        self.parameters = ShardedParameters(shards)

    @contextmanager
    def applied(self) -> Iterator[None]:
        with self._shards.lent(self.parameters.views(self.parameters.flat)):
            try:
                self._make_trainable(True)
                yield
            finally:
                self._make_trainable(False)

    def complete(self, gradient: torch.Tensor) -> None:
        pass  # FSDP has summed it

    def snapshot(self) -> ModelCopy:
        weights = {
            name: view.to(self._shards.weights[name].dtype, copy=True)
            for name, view in self.parameters.views(self.parameters.flat).items()
        }
        whole = sum(weight.itemsize * math.prod(self.parameters.shapes[name]) for name, weight in weights.items())
        processes = self._shards.process_group.size
        share = -(-whole // processes)  # the same in all processes, although the last one may have less
        return ModelCopy(self._shards.model, share, lambda: _computing_with(self._shards, weights))

    def _make_trainable(self, is_trainable: bool) -> None:
        for weight in self._shards.weights.values():
            weight.requires_grad_(is_trainable)


@contextmanager
def _computing_with(shards: ModelShards, weights: Mapping[str, torch.Tensor]) -> Iterator[None]:
    with shards.lent(weights), shards.computing():
        yield
