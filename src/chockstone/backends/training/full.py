"""Full fine-tuning: a run that trains every weight, on its own copy.

The copy is one flat float32 tensor. For the time of a micro-batch its pieces stand in the base
model's place, tied ones everywhere they are tied, cast to the model's own type where that differs.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import nn
from transformers import PreTrainedModel

from chockstone.backends.training.flat_parameters import FlatParameters, Parameters


@dataclass(frozen=True, slots=True)
class ModelCopy:
    """A model with the weights of one moment, frozen."""

    model: PreTrainedModel
    size_bytes: int
    computing: Callable[[], AbstractContextManager[None]] | None = None
    """What surrounds each use, where the model is lent to others in between. None: it is nobody else's."""


class TrainedWeights(Protocol):
    """What a run trains, on a base model."""

    @property
    def parameters(self) -> Parameters: ...

    def applied(self) -> AbstractContextManager[None]:
        """Inside, the base model computes with this run's weights, and gradients are taken of them."""

    def complete(self, gradient: torch.Tensor) -> None:
        """Add, in place, what the crew's other processes computed of the flat gradient of a pass."""


class OwnWeights(TrainedWeights, Protocol):
    """All weights of a model."""

    def snapshot(self) -> ModelCopy: ...


class FullWeights:
    def __init__(self, model: PreTrainedModel, *, device: torch.device) -> None:
        self._model = model
        self._originals = dict(model.named_parameters())  # each tied weight once, under its first name
        self._slots = _slots(model, self._originals)
        shapes = {name: tuple(original.shape) for name, original in self._originals.items()}
        self.parameters = FlatParameters(shapes, device=device)
        for name, view in self.parameters.views(self.parameters.flat).items():
            view.copy_(self._originals[name].detach())

    @contextmanager
    def applied(self) -> Iterator[None]:
        try:
            for name, leaf in self.parameters.leaves.items():
                weight = leaf.to(self._originals[name].dtype)
                for module, attribute in self._slots[name]:
                    module._parameters[attribute] = weight  # type: ignore[assignment]  # a tensor with a history
            yield
        finally:
            for name, original in self._originals.items():
                for module, attribute in self._slots[name]:
                    module._parameters[attribute] = original

    def complete(self, gradient: torch.Tensor) -> None:
        pass  # it has them all

    def snapshot(self) -> ModelCopy:
        views = self.parameters.views(self.parameters.flat)
        replaced: dict[int, object] = {
            id(original): nn.Parameter(views[name].to(original.dtype, copy=True), requires_grad=False)
            for name, original in self._originals.items()
        }
        model = copy.deepcopy(self._model, replaced)
        return ModelCopy(model, sum(parameter.nbytes for parameter in model.parameters()))


def _slots(model: nn.Module, originals: dict[str, nn.Parameter]) -> dict[str, list[tuple[nn.Module, str]]]:
    names = {id(original): name for name, original in originals.items()}
    slots: dict[str, list[tuple[nn.Module, str]]] = {name: [] for name in originals}
    for module in model.modules():
        for attribute, parameter in module._parameters.items():
            if parameter is not None:
                slots[names[id(parameter)]].append((module, attribute))
    return slots
