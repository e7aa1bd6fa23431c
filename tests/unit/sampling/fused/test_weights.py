from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
)

from support.sampling.making import (
    Served,
    _seeded,
    _sizes,
    llama,
    qwen3,
)


def network_of(served: Served) -> str:
    return type(served.sampled.network).__name__


def mistral(window: int | None) -> PreTrainedModel:
    return _seeded(MistralForCausalLM, MistralConfig(**_sizes(num_key_value_heads=2, sliding_window=window)))


def test_a_sliding_window_beyond_the_context_needs_no_care() -> None:
    assert network_of(Served(mistral(512), max_context=512)) == "FusedLlama"


def test_the_model_itself_stays_as_it_was(tmp_path: Path) -> None:
    model = qwen3()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    names = [name for name, _ in model.named_parameters()]

    Served(model)
    Served(model)  # again, as after a restart of the sampler

    assert [name for name, _ in model.named_parameters()] == names
    assert model.lm_head.weight is model.model.embed_tokens.weight  # type: ignore[union-attr]
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name])
    model.save_pretrained(tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path)
    for name, tensor in again.state_dict().items():
        assert torch.equal(tensor, before[name])
    model.load_state_dict(before)
    assert torch.equal(copy.deepcopy(model).state_dict()[names[1]], before[names[1]])


def test_no_weight_is_held_twice() -> None:
    model = llama()
    served = Served(model)

    weights = served.sampled.network._weights  # type: ignore[attr-defined]

    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    assert {matrix.weight.untyped_storage().data_ptr() for matrix in weights.matrices} <= own
    attention: Any = model.model.layers[0].self_attn  # type: ignore[union-attr,index]
    assert weights.layers[0].qkv.weight.data_ptr() == attention.q_proj.weight.data_ptr()
