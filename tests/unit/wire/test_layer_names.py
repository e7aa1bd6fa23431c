from __future__ import annotations

import pytest

from chockstone.wire.layer_names import ATTENTION_LAYERS, IN_A_BLOCK


@pytest.mark.parametrize(
    ("name", "is_in_a_block", "is_attention"),
    [
        ("model.layers.0.self_attn.q_proj", True, True),
        ("transformer.h.11.attn.c_attn", True, True),
        ("model.layers.3.mlp.gate_proj", True, False),
        ("lm_head", False, False),
    ],
)
def test_the_name_of_a_layer_says_which_part_it_is_of(name: str, is_in_a_block: bool, is_attention: bool) -> None:
    assert bool(IN_A_BLOCK.search(name)) == is_in_a_block
    assert bool(ATTENTION_LAYERS.search(name)) == is_attention
