"""The quantiser: lets transformers read a model and quantise each weight as soon as it is read.

It is registered with transformers as a quantisation method, so that all architectures and all conversions between files
and modules work. One weight at a time is in memory unquantised.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Self

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.core_model_loading import ConversionOps, WeightConverter
from transformers.quantizers.auto import register_quantization_config, register_quantizer
from transformers.quantizers.base import HfQuantizer
from transformers.utils.quantization_config import QuantizationConfigMixin

from chockstone.backends.quantisation.layers import quantised_layers
from chockstone.backends.quantisation.stored import NAMES_4BIT, NAMES_8BIT, StoredError, read_4bit, read_8bit
from chockstone.sampling.quantised.linear import replace_weight
from chockstone.sampling.quantised.weight import QuantisedPrecision, QuantisedWeight, quantise

METHOD: Final = "chockstone"


@register_quantization_config(METHOD)
class QuantiserConfig(QuantizationConfigMixin):
    """What transformers passes to the quantiser. In a model's configuration it says that the files are quantised."""

    def __init__(self, *, precision: QuantisedPrecision, device: str, quant_method: str = METHOD) -> None:
        self.quant_method = quant_method  # type: ignore[assignment]  # transformers allows registered names
        self.precision = precision
        self.device = device


@register_quantizer(METHOD)
class Quantiser(HfQuantizer):
    """Reads one model. The weights stay here until all are read; then they replace those of the model's layers."""

    quantization_config: QuantiserConfig

    def __init__(self, quantization_config: QuantiserConfig, **options: Any) -> None:  # Any: of transformers
        super().__init__(quantization_config, **options)
        self._layers: Mapping[str, nn.Linear] = {}
        self._weights: dict[str, QuantisedWeight] = {}  # by layer
        self._failure: StoredError | None = None  # of the first weight that could not be read
        self.dtype = torch.float32

    def _process_model_before_weight_loading(self, model: PreTrainedModel, **_: Any) -> None:
        self._layers = quantised_layers(model)
        self.dtype = model.dtype

    def param_needs_quantization(self, model: PreTrainedModel, param_name: str, **_: Any) -> bool:  # noqa: ARG002
        return param_name.removesuffix(".weight") in self._layers

    def get_quantize_ops(self) -> ConversionOps:
        return _Quantise(self)

    def get_weight_conversions(self) -> list[WeightConverter]:
        if not self.pre_quantized:
            return []
        names = NAMES_4BIT if self.quantization_config.precision == "4bit" else NAMES_8BIT
        return [WeightConverter(list(names), "weight", [_Read(self)])]

    def add(self, name: str, number: torch.Tensor) -> torch.Tensor:
        """Take a weight as it was read. Returns what transformers keeps in its place until all weights are read."""
        placed = number.to(self.quantization_config.device)
        self._weights[name] = quantise(placed, self.quantization_config.precision, dtype=self.dtype)
        return torch.empty(0, dtype=self.dtype)

    def add_stored(self, name: str, tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """The same for a weight that is quantised in the files."""
        read = read_4bit if self.quantization_config.precision == "4bit" else read_8bit
        placed = {key: tensor.to(self.quantization_config.device) for key, tensor in tensors.items()}
        try:
            if (layer := self._layers.get(name)) is None:
                raise StoredError("it is quantised, but in no linear layer of a block")
            self._weights[name] = read(placed, (layer.out_features, layer.in_features), self.dtype)
        except StoredError as error:  # transformers would not pass it on
            self._failure = self._failure or StoredError(f"weight {name!r} cannot be read: {error}")
        return torch.empty(0, dtype=self.dtype)

    def _process_model_after_weight_loading(self, model: PreTrainedModel, **_: Any) -> PreTrainedModel:
        if self._failure is not None:
            raise self._failure
        for name, layer in self._layers.items():
            if (weight := self._weights.pop(name, None)) is not None:
                replace_weight(layer, weight)
            elif not _is_plain(layer):
                raise StoredError(f"weight {name!r} cannot be read: the numbers beside its codes are missing")
        self._layers = {}
        self.remove_quantization_config(model)  # type: ignore[no-untyped-call]  # transformers has no types here
        return model

    def is_serializable(self) -> bool:
        return False

    @property
    def is_trainable(self) -> bool:
        return True


class _Quantise(ConversionOps):
    def __init__(self, hf_quantizer: Quantiser) -> None:
        self.hf_quantizer = hf_quantizer

    def convert(
        self,
        input_dict: dict[str, Any],  # Any: tensors, or lists of one
        source_patterns: list[str],  # noqa: ARG002  # as transformers passes it
        target_patterns: list[str],  # noqa: ARG002  # as transformers passes it
        **_: Any,
    ) -> dict[str, list[torch.Tensor]]:
        return {
            name: [self.hf_quantizer.add(name.removesuffix(".weight"), _first(tensor))]
            for name, tensor in input_dict.items()
        }


class _Read(ConversionOps):
    def __init__(self, hf_quantizer: Quantiser) -> None:
        self.hf_quantizer = hf_quantizer  # the name tells transformers not to cast what it reads

    def __deepcopy__(self, _: dict[int, Any]) -> Self:
        return self  # transformers copies an operation for each weight; all share the quantiser

    def convert(
        self,
        input_dict: dict[str, Any],  # Any: tensors, or lists of one
        source_patterns: list[str],  # noqa: ARG002  # as transformers passes it
        target_patterns: list[str],  # noqa: ARG002  # as transformers passes it
        *,
        full_layer_name: str = "",
        **_: Any,
    ) -> dict[str, list[torch.Tensor]]:
        """Gets the tensors of one layer. A layer that is not quantised has its weight only."""
        tensors = {name: _first(tensor) for name, tensor in input_dict.items()}
        if len(tensors) > 1:
            return {"weight": [self.hf_quantizer.add_stored(full_layer_name.removesuffix(".weight"), tensors)]}
        return {
            name: [tensor.to(self.hf_quantizer.dtype) if tensor.is_floating_point() else tensor]
            for name, tensor in tensors.items()
        }


def _first(tensor: Any) -> torch.Tensor:  # Any: a tensor, or a list of one
    found: torch.Tensor = tensor[0] if isinstance(tensor, list) else tensor
    return found


def _is_plain(layer: nn.Linear) -> bool:
    shape = (layer.out_features, layer.in_features)
    return layer.weight.is_floating_point() and tuple(layer.weight.shape) == shape
