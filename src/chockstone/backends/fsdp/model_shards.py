"""Model shards: the rows of a model's weights that this process holds. FSDP gathers whole weights to compute.

Every weight is sharded along its first axis, in the order of the ranks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel

from chockstone.backends.training.process_group import ProcessGroup
from chockstone.wire.failures import RequestError


@dataclass(frozen=True, slots=True)
class ParameterShare:
    """The rows of a weight that this process holds."""

    shape: tuple[int, ...]  # of the whole weight
    start: int
    stop: int

    @property
    def rows(self) -> slice:
        return slice(self.start, self.stop)

    @property
    def local_shape(self) -> tuple[int, ...]:
        return (self.stop - self.start, *self.shape[1:])

    @property
    def first_element(self) -> int:
        return self.start * math.prod(self.shape[1:])


class ModelShards:
    """The weights of a sharded ``model``. They may be changed only while nothing computes with the model."""

    def __init__(self, model: PreTrainedModel, process_group: ProcessGroup) -> None:
        self.model = model
        self.process_group = process_group
        self.weights = cast("dict[str, DTensor]", dict(model.named_parameters()))  # tied weights once
        self.shares = {name: _share(weight, process_group) for name, weight in self.weights.items()}
        self._base: dict[str, torch.Tensor] = {}  # a copy of the base model's rows, made by the first ``lent``

    @contextmanager
    def computing(self) -> Iterator[None]:
        """Surrounds a forward pass and its backward pass, if there is one. Afterwards only the shards are in memory.

        An error inside aborts the process group, unless it is a RequestError, which all ranks raise together.
        """
        try:
            yield
        except RequestError:
            self.model.zero_grad(set_to_none=True)  # gradients of the unsharded root group
            raise
        except Exception as error:
            self.process_group.abort(error)
            raise
        finally:
            cast("Any", self.model).reset_iter_state()  # Any: FSDP adds its methods to the class

    @torch.no_grad()
    def local(self, name: str) -> torch.Tensor:
        """This process's rows, as a view of the model's memory."""
        return self.weights[name].to_local()

    @contextmanager
    def lent(self, weights: Mapping[str, torch.Tensor]) -> Iterator[None]:
        """Inside, the model has these rows instead of its own. Nothing may compute when the block begins or ends."""
        if not self._base:
            self._base = {name: self.local(name).clone() for name in self.weights}
        try:
            self._fill(weights)
            yield
        finally:
            self._fill(self._base)

    @torch.no_grad()
    def _fill(self, weights: Mapping[str, torch.Tensor]) -> None:
        for name in self.weights:
            self.local(name).copy_(weights[name])


def _share(weight: DTensor, process_group: ProcessGroup) -> ParameterShare:
    shape = tuple(weight.shape)
    height = -(-shape[0] // process_group.size)  # as torch.chunk does
    start = min(process_group.rank * height, shape[0])
    share = ParameterShare(shape, start, min(start + height, shape[0]))
    assert tuple(weight.to_local().shape) == share.local_shape
    return share
