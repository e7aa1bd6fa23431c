"""Which models are packed is found out by computing with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional
from transformers import (
    AutoModelForCausalLM,
    FalconConfig,
    Gemma2Config,
    GPT2Config,
    MambaConfig,
    MistralConfig,
    PreTrainedConfig,
    Qwen3Config,
)

from chockstone.backends.training.base_model import BaseModel, prepare_base_model
from support.tiny_models import VOCABULARY, tiny_base, tiny_model, tiny_tokenizer

SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "initializer_range": 0.2,
}


def prepare(config: PreTrainedConfig) -> BaseModel:
    with torch.random.fork_rng():
        torch.manual_seed(7)
        model = AutoModelForCausalLM.from_config(config).eval()
    return prepare_base_model("tiny", Path("tiny"), model, tiny_tokenizer())


@pytest.mark.parametrize("architecture", ["qwen3", "llama"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_plain_decoders_are_packed(architecture: str, dtype: torch.dtype) -> None:
    assert tiny_base(architecture, dtype=dtype).packs


@pytest.mark.parametrize(
    "config",
    [
        MistralConfig(**SIZES, sliding_window=5, head_dim=8),
        Qwen3Config(
            **SIZES, head_dim=8, sliding_window=6, use_sliding_window=True, max_window_layers=1
        ),  # every other layer
        GPT2Config(vocab_size=VOCABULARY, n_positions=64, n_embd=32, n_layer=2, n_head=4),
    ],
    ids=["sliding windows", "windows in some layers", "learned positions"],
)
def test_windows_and_learned_positions_are_packed(config: PreTrainedConfig) -> None:
    assert prepare(config).packs


@pytest.mark.parametrize(
    "config",
    [
        MambaConfig(vocab_size=VOCABULARY, hidden_size=32, state_size=4, num_hidden_layers=2),
        FalconConfig(vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, alibi=True),
    ],
    ids=["recurrent", "biases by position"],
)
def test_other_ways_to_mix_positions_are_padded(config: PreTrainedConfig) -> None:
    assert not prepare(config).packs


def test_eager_attention_is_padded() -> None:
    config = Gemma2Config(**SIZES, head_dim=8, attn_logit_softcapping=5.0)
    config._attn_implementation = "eager"

    assert not prepare(config).packs


def test_a_layer_that_mixes_a_little_is_padded() -> None:
    model = tiny_model()
    inner = model.model.layers[1].mlp
    forward = inner.forward
    inner.forward = lambda x: forward(x + 1e-3 * functional.pad(x, (0, 0, 1, 0))[:, :-1])

    assert not prepare_base_model("tiny", Path("tiny"), model, tiny_tokenizer()).packs
