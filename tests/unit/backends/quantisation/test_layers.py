from __future__ import annotations

import torch
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

from chockstone.backends.quantisation.layers import (
    FULL,
    count_parameters,
    find_precision,
    quantised_layers,
    weight_bytes,
)
from chockstone.sampling.quantised.linear import replace_weight
from chockstone.sampling.quantised.weight import quantise
from support.tiny_models import tiny_model

IN_A_BLOCK = {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}


def test_the_linear_layers_of_blocks_are_quantised_and_nothing_else() -> None:
    layers = quantised_layers(tiny_model())

    assert {name.rpartition(".")[2] for name in layers} == IN_A_BLOCK
    assert len(layers) == 2 * len(IN_A_BLOCK)


def test_routers_of_experts_are_not_quantised() -> None:
    config = Qwen3MoeConfig(
        vocab_size=97,
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_experts=4,
        moe_intermediate_size=16,
    )
    with torch.device("meta"):
        layers = quantised_layers(Qwen3MoeForCausalLM(config))

    assert {name.rpartition(".")[2] for name in layers} == {"q_proj", "k_proj", "v_proj", "o_proj"}


def test_the_precision_and_the_size_of_a_model_are_found() -> None:
    model = tiny_model(tied=True)
    numbers, before = count_parameters(model), weight_bytes(model)
    assert find_precision(model) == FULL
    assert numbers == sum(parameter.numel() for parameter in model.parameters()) and before == 4 * numbers
    layers = quantised_layers(model)
    quantised = sum(layer.weight.nbytes for layer in layers.values())

    for layer in layers.values():
        replace_weight(layer, quantise(layer.weight, "8bit", dtype=torch.float32))

    assert find_precision(model) == "8bit"
    assert count_parameters(model) == numbers
    rows = sum(layer.out_features for layer in layers.values())
    assert weight_bytes(model) == before - quantised + quantised // 4 + 4 * rows
