"""Quantised linear layers: modules of a model whose weight is kept quantised."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import nn
from torch.nn import functional

from chockstone.sampling.quantised.weight import FrozenWeight, QuantisedPrecision, QuantisedWeight, dense


class QuantisedLinear(nn.Linear):
    """A linear layer with two parameters, ``codes`` and ``scales``, in place of ``weight``. Both need no gradient."""

    codes: nn.Parameter
    scales: nn.Parameter
    number_type: torch.dtype

    @property
    def precision(self) -> QuantisedPrecision:
        return self.frozen.precision

    @property
    def frozen(self) -> QuantisedWeight:
        return QuantisedWeight(self.codes, self.scales, self.in_features, self.number_type)

    @property
    def weight(self) -> torch.Tensor:  # type: ignore[override]  # nn.Linear has a parameter of this name
        """The numbers, computed anew by each call. For code of transformers that asks a layer for its weight."""
        return self.frozen.dequantised()

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002  # nn.Linear's own name
        return functional.linear(input, dense(self.frozen), self.bias)


def replace_weight(linear: nn.Linear, weight: QuantisedWeight) -> QuantisedLinear:
    """Turn a plain linear layer into a quantised one, in place. Its bias stays."""
    del linear._parameters["weight"]
    linear.__class__ = QuantisedLinear
    quantised = cast("QuantisedLinear", linear)
    quantised.number_type = weight.dtype
    quantised.register_parameter("codes", nn.Parameter(weight.codes, requires_grad=False))
    quantised.register_parameter("scales", nn.Parameter(weight.scales, requires_grad=False))
    return quantised


def frozen_weight(module: Any) -> FrozenWeight:  # Any: a linear, or what training wrapped one in
    """The weight of a linear layer as it is kept: a tensor, or quantised."""
    if isinstance(module, QuantisedLinear):
        return module.frozen
    weight: torch.Tensor = module.weight
    return weight
