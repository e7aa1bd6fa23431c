"""Scales of the GPU check: how large its models and sequences are on a device."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedConfig, Qwen3MoeConfig

from benchmarks.families.tiny_model import make_tokenizer


@dataclass(frozen=True, slots=True)
class Scale:
    device: str
    dtype: str
    hidden_size: int
    layers: int
    vocab_size: int
    tokens: int  # of a usual sequence
    long_tokens: int
    tolerance: float  # of log-probabilities

    @property
    def is_reduced(self) -> bool:
        return self.device == "cpu"

    def small(self) -> dict[str, Any]:
        """Sizes of a model all of whose weights are trained: that takes 18 bytes a weight."""
        return {"hidden_size": max(64, self.hidden_size // 2), "layers": max(2, self.layers // 4)}


REDUCED: Final = Scale("cpu", "float32", 64, 2, 512, 96, 384, 1e-4)
WHOLE: Final = Scale("cuda", "bfloat16", 2048, 16, 32_000, 2048, 16_384, 5e-2)
MODEST: Final = Scale("cuda", "bfloat16", 1024, 12, 32_000, 1024, 8192, 5e-2)  # for devices below 16 GiB


def choose_scale(device: str) -> Scale:
    if device == "cpu":
        return REDUCED
    return WHOLE if torch.cuda.get_device_properties(0).total_memory >= 16 << 30 else MODEST


def write_llama(directory: Path, scale: Scale, **sizes: Any) -> Path:
    hidden_size, layers = (sizes.get(name, getattr(scale, name)) for name in ("hidden_size", "layers"))
    config = LlamaConfig(
        **_shared(scale, hidden_size, layers),
        intermediate_size=hidden_size * 11 // 4,
        tie_word_embeddings=False,
    )
    return write_random(directory, config, scale)


def write_mixture(directory: Path, scale: Scale) -> Path:
    hidden_size = max(64, scale.hidden_size // 4)
    config = Qwen3MoeConfig(
        **_shared(scale, hidden_size, max(2, scale.layers // 4)),
        intermediate_size=hidden_size * 2,
        moe_intermediate_size=hidden_size // 2,
        num_experts=8,
        num_experts_per_tok=2,
    )
    return write_random(directory, config, scale)


def write_random(directory: Path, config: PreTrainedConfig, scale: Scale) -> Path:
    torch.manual_seed(7)
    with torch.device(scale.device):
        model: Any = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, scale.dtype))
    model.save_pretrained(directory)
    make_tokenizer().save_pretrained(directory)
    return directory


def _shared(scale: Scale, hidden_size: int, layers: int) -> dict[str, Any]:
    heads = max(4, hidden_size // 128)
    return {
        "vocab_size": scale.vocab_size,
        "hidden_size": hidden_size,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": heads // 2,
        "head_dim": hidden_size // heads,
        "max_position_embeddings": 2 * scale.long_tokens,
        "initializer_range": 0.15 if scale.is_reduced else 0.02,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "pad_token_id": 2,
    }
