"""Tiny random mixtures of experts, of architectures whose experts are laid out in different ways."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from chockstone.backends.training.base_model import BaseModel, load_base_model, prepare_base_model
from support.tiny_models import VOCABULARY, tiny_tokenizer

SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "initializer_range": 0.2,
    "num_experts_per_tok": 2,
    "pad_token_id": None,
}
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "qwen3_moe": {"num_experts": 6, "moe_intermediate_size": 16, "intermediate_size": 48, "norm_topk_prob": True},
    "mixtral": {"num_local_experts": 4, "intermediate_size": 24},
    "gpt_oss": {"num_local_experts": 4, "intermediate_size": 24, "sliding_window": 16},  # transposed, with biases
    "qwen3_5_moe_text": {
        "num_experts": 4,
        "moe_intermediate_size": 16,
        "shared_expert_intermediate_size": 16,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 2,
        "linear_key_head_dim": 8,
        "linear_value_head_dim": 8,
        "layer_types": ["linear_attention", "full_attention"],
    },
}


def tiny_experts(architecture: str = "qwen3_moe", **changes: Any) -> Any:
    config: Any = AutoConfig.for_model(architecture, **(SIZES | ARCHITECTURES[architecture] | changes))
    with torch.random.fork_rng():
        torch.manual_seed(11)
        model = AutoModelForCausalLM.from_config(config).eval()
        for parameter in model.parameters():
            if not parameter.any():  # biases, and whatever else begins at zero
                torch.nn.init.normal_(parameter, std=0.1)
    return model


def experts_base(architecture: str = "qwen3_moe", **changes: Any) -> BaseModel:
    return prepare_base_model("experts", Path("experts"), tiny_experts(architecture, **changes), tiny_tokenizer())


def experts_directory(directory: Path, architecture: str = "qwen3_moe", **changes: Any) -> BaseModel:
    """The model in a directory, as ``save_pretrained`` writes it, loaded from there."""
    tiny_experts(architecture, **changes).save_pretrained(directory)
    tiny_tokenizer().save_pretrained(directory)
    return load_base_model("experts", directory)


def tie_routers(model: Any) -> Any:
    """Make all experts score nearly the same, in place: rounding decides which are chosen."""
    generator = torch.Generator().manual_seed(3)
    for name, parameter in model.named_parameters():
        if name.endswith(".mlp.router.bias"):
            parameter.data.zero_()
        elif name.endswith((".mlp.gate.weight", ".mlp.router.weight")):
            noise = torch.empty(parameter.shape).normal_(0, 1e-7, generator=generator)
            parameter.data = parameter.data[:1] + noise
    return model
