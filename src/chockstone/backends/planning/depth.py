"""Depth: copies of a model with fewer layers, from which the passes of the whole model are known.

The layers of a model are of a few kinds, in a pattern that repeats: all alike, or three with linear attention and one
with full attention, or a dense one first and mixtures of experts after it. What a pass holds grows by the same number
of bytes with each repetition. So two passes over few layers say what a pass over all of them holds.
"""

from __future__ import annotations

import copy
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from torch import nn
from transformers import PreTrainedModel

from chockstone.backends.training.activations import outer_layers

_NUMBERS: Final = frozenset({"layer_idx", "layer_id", "layer_index", "layer_number", "idx"})  # of a layer


@dataclass(frozen=True, slots=True)
class PassMemory:
    """Of one pass, in bytes."""

    peak: int  # the most at any moment
    kept: int  # after the forward pass of the layers, when most of them hold something


@dataclass(frozen=True, slots=True)
class Repetition:
    """Numbers of layers."""

    period: int  # in the pattern that repeats
    few: int  # in the smallest model that ends with a whole pattern, as the whole model does
    all: int

    @property
    def more(self) -> int:
        """In a model with one pattern more."""
        return self.few + self.period

    def extrapolate(self, few: PassMemory, more: PassMemory) -> int | None:
        """The peak with all layers, from passes with ``few`` and ``more`` layers. None if they do not tell.

        At each moment of a pass memory is a line over the number of patterns, and none is as steep as that of the
        moment when all layers hold something. So the peak is a line from where it has that slope. If it does not have
        it yet, something outside of the layers takes more while there are few of them.
        """
        growth = more.peak - few.peak
        if growth != more.kept - few.kept:
            return None
        return more.peak + growth * ((self.all - self.more) // self.period)


def find_repetition(kinds: Sequence[Hashable]) -> Repetition | None:
    """The cheapest; None if passes with few layers would take as long as one with all.

    The first layer is never part of what is repeated: its input needs no gradient.
    """
    depth = len(kinds)
    found: list[Repetition] = []
    for period in range(1, depth // 3 + 1):
        alike = next((end for end in range(depth, period, -1) if kinds[end - 1] != kinds[end - 1 - period]), period)
        least = max(2, alike)  # from here on each layer is as the one a period before
        found.append(Repetition(period, least + (depth - least) % period, depth))
    cheap = [each for each in found if each.few + each.more < depth]
    return min(cheap, key=lambda each: each.few + each.more, default=None)


def make_shallow(model: PreTrainedModel) -> tuple[Repetition, PreTrainedModel, PreTrainedModel] | None:
    """Copies of a model on the meta device with few layers and with more; None if its layers do not repeat."""
    layers = _find_layers(model)
    if layers is None:
        return None
    repetition = find_repetition(list(_kinds(model, layers)))
    if repetition is None:
        return None
    return repetition, _cut(model, layers, repetition.few), _cut(model, layers, repetition.more)


def _find_layers(model: PreTrainedModel) -> nn.ModuleList | None:
    """The list that holds all layers of the decoder, in their order."""
    outer = outer_layers(model)
    if getattr(model.config.get_text_config(), "num_hidden_layers", None) != len(outer):
        return None
    lists = (module for module in model.modules() if isinstance(module, nn.ModuleList))
    return next((layers for layers in lists if list(layers) == outer), None)


def _cut(model: PreTrainedModel, layers: nn.ModuleList, depth: int) -> PreTrainedModel:
    memo: dict[int, Any] = {}  # Any: as copy.deepcopy wants it
    memo[id(layers)] = nn.ModuleList(copy.deepcopy(layer, memo) for layer in list(layers)[:depth])
    cut = copy.deepcopy(model, memo)
    cut.config.get_text_config().num_hidden_layers = depth
    return cut


def _kinds(model: PreTrainedModel, layers: nn.ModuleList) -> Iterator[Hashable]:
    """Layers of equal kind have equal modules, shapes and settings, and equal entries in lists of the configuration."""
    config = model.config.get_text_config().to_dict()
    lists = [value for value in config.values() if isinstance(value, list) and len(value) == len(layers)]
    for number, layer in enumerate(layers):
        modules = tuple((name, type(module), _settings(module)) for name, module in layer.named_modules())
        tensors = (*layer.named_parameters(), *layer.named_buffers())
        shapes = tuple((name, tuple(tensor.shape), tensor.dtype) for name, tensor in tensors)
        yield modules, shapes, tuple(repr(values[number]) for values in lists)


def _settings(module: nn.Module) -> Hashable:
    return tuple(
        (name, value)
        for name, value in sorted(vars(module).items())
        if name not in _NUMBERS and isinstance(value, bool | int | float | str | None)
    )
