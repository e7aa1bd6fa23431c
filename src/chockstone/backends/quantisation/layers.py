"""Quantised layers: the linear layers inside of the decoder's blocks. All other weights keep the type they load in.

Embeddings, norms, the output layer and the routers of experts are small or sensitive, so they are not quantised.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import torch
from torch import nn
from transformers import PreTrainedModel

from chockstone.backends.run_spec import BasePrecision
from chockstone.sampling.quantised.linear import QuantisedLinear, replace_weight
from chockstone.sampling.quantised.weight import empty_weight

FULL: Final = "full"  # precision of a model without quantised layers
PRECISIONS: Final = (FULL, "8bit", "4bit")
_IN_A_BLOCK: Final = re.compile(r"\.\d+\.")
_ROUTER: Final = re.compile(r"(^|\.)(router|gate|shared_expert_gate)$")  # not gate_proj, which is part of an MLP


def quantised_layers(model: PreTrainedModel) -> Mapping[str, nn.Linear]:
    """The layers of an unquantised ``model`` to quantise, by name. The model may be on the meta device."""
    head: object = model.get_output_embeddings()  # type: ignore[no-untyped-call]  # transformers has no types here
    return {
        name: module
        for name, module in model.named_modules()
        if type(module) is nn.Linear
        and module is not head
        and _IN_A_BLOCK.search(f".{name}.")
        and not _ROUTER.search(name)
    }


def quantise_empty(model: PreTrainedModel, precision: BasePrecision) -> None:
    """Replace the weights of a model on the meta device by quantised ones, which have no numbers either."""
    if precision == "auto":
        return
    for layer in quantised_layers(model).values():
        shape = (layer.out_features, layer.in_features)
        replace_weight(layer, empty_weight(shape, precision, dtype=model.dtype, device=layer.weight.device))


def find_precision(model: nn.Module) -> str:
    """The precision of the quantised layers: 8bit, 4bit, or FULL if there are none."""
    found = {module.frozen.precision for module in model.modules() if isinstance(module, QuantisedLinear)}
    return min(found, default=FULL)  # "4bit" < "8bit"


def count_parameters(model: nn.Module) -> int:
    """How many numbers the model has, those of quantised weights included. Tied weights count once."""
    quantised = [module for module in model.modules() if isinstance(module, QuantisedLinear)]
    packed = sum(module.codes.numel() + module.scales.numel() for module in quantised)
    numbers = sum(module.frozen.numel() for module in quantised)
    return sum(parameter.numel() for parameter in model.parameters()) - packed + numbers


def weight_bytes(model: nn.Module) -> int:
    """Memory of all weights in this process, quantised or not. Tied weights count once."""
    return sum(_held(parameter).nbytes for parameter in model.parameters())


def _held(parameter: torch.Tensor) -> torch.Tensor:
    """The rows of a sharded parameter that this process has, or all."""
    rows: torch.Tensor = parameter.to_local() if hasattr(parameter, "to_local") else parameter
    return rows
