"""Full fine-tuning: a run that trains every weight, on its own copy.

The copy is one flat float32 tensor. For the time of a micro-batch its pieces stand in the base
model's place, tied ones everywhere they are tied, cast to the model's own type where that differs.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn
from transformers import PreTrainedModel

from chockstone.backends.flat import FlatParameters


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
        """Inside, the base model computes with this run's weights, and gradients reach its leaves."""
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

    def snapshot(self) -> PreTrainedModel:
        """A model of its own with the weights of this moment, frozen."""
        views = self.parameters.views(self.parameters.flat)
        replaced: dict[int, object] = {
            id(original): nn.Parameter(views[name].to(original.dtype, copy=True), requires_grad=False)
            for name, original in self._originals.items()
        }
        return copy.deepcopy(self._model, replaced)


def _slots(model: nn.Module, originals: dict[str, nn.Parameter]) -> dict[str, list[tuple[nn.Module, str]]]:
    names = {id(original): name for name, original in originals.items()}
    slots: dict[str, list[tuple[nn.Module, str]]] = {name: [] for name in originals}
    for module in model.modules():
        for attribute, parameter in module._parameters.items():
            if parameter is not None:
                slots[names[id(parameter)]].append((module, attribute))
    return slots
