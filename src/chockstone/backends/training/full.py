"""Full fine-tuning: a run that trains every weight, on its own copy.

The copy is one flat float32 tensor. During a micro-batch its pieces replace the base model's weights, in every place
where a weight is tied, cast to the model's own type if that differs.
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
    """A frozen copy of a model."""

    model: PreTrainedModel
    size_bytes: int
    computing: Callable[[], AbstractContextManager[None]] | None = None
    """Surrounds each use of a model that is shared with others. None: the model is not shared."""


class TrainedWeights(Protocol):
    """The weights that a run trains, on a base model."""

    @property
    def parameters(self) -> Parameters: ...

    def applied(self) -> AbstractContextManager[None]:
        """Inside, the base model computes with this run's weights, and gradients flow to them."""

    def complete(self, gradient: torch.Tensor) -> None:
        """Add, in place, the flat gradients of a pass of the other processes of the group."""


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
                    module._parameters[attribute] = weight  # type: ignore[assignment]  # a tensor with a graph
            yield
        finally:
            for name, original in self._originals.items():
                for module, attribute in self._slots[name]:
                    module._parameters[attribute] = original

    def complete(self, gradient: torch.Tensor) -> None:
        pass  # one process has computed all of it

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
