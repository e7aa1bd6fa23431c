"""Model shards: this process's part of a model's weights, and the model that FSDP makes of all parts for a while.

Every weight is cut along its first axis, in the order of the ranks.
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
    """Which rows of a weight are here."""

    shape: tuple[int, ...]  # of the whole
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
    """``model`` was sharded, and has its weights; they are only touched while nobody computes."""

    def __init__(self, model: PreTrainedModel, crew: ProcessGroup) -> None:
        self.model = model
        self.crew = crew
        self.weights = cast("dict[str, DTensor]", dict(model.named_parameters()))  # tied ones once
        self.shares = {name: _share(weight, crew) for name, weight in self.weights.items()}
        self._base: dict[str, torch.Tensor] = {}  # a copy of it, from when it was first lent

    @contextmanager
    def computing(self) -> Iterator[None]:
        """Surrounds a pass forward, and its way back if there is one. After it no more than the shards are held.

        Whatever goes wrong inside, and is not what all ranks agreed on, ends the crew.
        """
        try:
            yield
        except RequestError:
            self.model.zero_grad(set_to_none=True)  # of the ends, which are whole until they are put away
            raise
        except Exception as error:
            self.crew.lose(error)
            raise
        finally:
            cast("Any", self.model).reset_iter_state()  # Any: FSDP's methods are mixed in

    @torch.no_grad()
    def local(self, name: str) -> torch.Tensor:
        """The base model's own memory."""
        return self.weights[name].to_local()

    @contextmanager
    def lent(self, weights: Mapping[str, torch.Tensor]) -> Iterator[None]:
        """Inside, the model has these rows instead of its own; nobody may be computing as it begins or ends."""
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


def _share(weight: DTensor, crew: ProcessGroup) -> ParameterShare:
    shape = tuple(weight.shape)
    height = -(-shape[0] // crew.size)  # as torch.chunk cuts
    start = min(crew.rank * height, shape[0])
    share = ParameterShare(shape, start, min(start + height, shape[0]))
    assert tuple(weight.to_local().shape) == share.local_shape
    return share
