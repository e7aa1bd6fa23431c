from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from chockstone.sampling.quantised.linear import QuantisedLinear, frozen_weight, replace_weight
from chockstone.sampling.quantised.weight import QuantisedPrecision, QuantisedWeight, quantise


def layer(*, bias: bool = True) -> nn.Linear:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return nn.Linear(128, 6, bias=bias).requires_grad_(False)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("precision", ["8bit", "4bit"])
def test_a_quantised_layer_computes_with_the_dequantised_weight(precision: QuantisedPrecision, bias: bool) -> None:
    plain, x = layer(bias=bias), torch.randn(2, 3, 128)
    weight = quantise(plain.weight, precision, dtype=torch.float32)

    quantised = replace_weight(copy.deepcopy(plain), weight)

    assert torch.equal(quantised(x), nn.functional.linear(x, weight.dequantised(), plain.bias))
    assert isinstance(quantised, QuantisedLinear) and quantised.precision == precision
    assert {name for name, _ in quantised.named_parameters()} == {"codes", "scales"} | ({"bias"} if bias else set())


def test_a_quantised_layer_says_what_its_weight_is() -> None:
    plain = layer()
    weight = quantise(plain.weight, "4bit", dtype=torch.float32)
    quantised = replace_weight(copy.deepcopy(plain), weight)

    assert torch.equal(quantised.weight, weight.dequantised())
    assert frozen_weight(plain) is plain.weight
    found = frozen_weight(quantised)
    assert isinstance(found, QuantisedWeight) and found.shape == (6, 128)
    assert torch.equal(found.codes, weight.codes) and torch.equal(found.scales, weight.scales)


def test_a_copy_of_a_quantised_layer_has_memory_of_its_own() -> None:
    quantised = replace_weight(layer(), quantise(layer().weight, "8bit", dtype=torch.float32))

    again = copy.deepcopy(quantised)
    again.codes.zero_()

    assert quantised.codes.any()
