"""Tiny models of the families that can be written as GGUF, and their exports."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from chockstone.backends.export.gguf.export import GgufOptions, GgufReport, export_gguf
from chockstone.backends.training.base_model import BaseModel, prepare_base_model
from chockstone.backends.training.run import TrainedRun
from chockstone.cli.models.tokenizer import FAMILIES, build_tokenizer, tokenizer_config
from support.backends.saving import make_run, open_desk
from support.tiny_models import tiny_tokenizer

TOKENS: Final = 288
VOCABULARY: Final = 300  # a few embeddings belong to no token
SIZES: Final[Mapping[str, Any]] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 64,
    "initializer_range": 0.2,
    "tie_word_embeddings": False,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": 1,
}
GEMMA: Final[Mapping[str, Any]] = {"query_pre_attn_scalar": 16, "sliding_window": 8}
OTHERWISE: Final[Mapping[str, Mapping[str, Any]]] = {
    "qwen3_moe": {
        "num_experts": 6,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "norm_topk_prob": True,
    },
    "gemma2": {**GEMMA, "tie_word_embeddings": True},
    "gemma3_text": {**GEMMA, "num_hidden_layers": 6},  # five layers that slide, and one that does not
    "mistral": {"sliding_window": None},
}
LLAMA3: Final[Mapping[str, Any]] = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN: Final[Mapping[str, Any]] = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 16,
}
LINEAR: Final[Mapping[str, Any]] = {"rope_type": "linear", "rope_theta": 500.0, "factor": 4.0}


@dataclass(frozen=True, slots=True)
class Case:
    """A model, and a run on it. ``changes`` are of the configuration, ``flags`` of the run."""

    model_type: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    flags: Mapping[str, bool] = field(default_factory=dict)
    rank: int = 4


WITHOUT_HEAD: Final = {"train_unembed": False}
CASES: Final[Mapping[str, Case]] = {
    "llama": Case("llama"),
    "llama, tied, trained head": Case("llama", {"tie_word_embeddings": True}),
    "llama, biases": Case("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama, wide heads": Case("llama", {"head_dim": 32, "num_key_value_heads": 4}),
    "mistral": Case("mistral"),
    "qwen2": Case("qwen2"),
    "qwen3": Case("qwen3"),
    "qwen3_moe": Case("qwen3_moe"),
    "qwen3_moe, full": Case("qwen3_moe", rank=0),
    "gemma2": Case("gemma2", {}, WITHOUT_HEAD),
    "gemma3_text": Case("gemma3_text"),
}
SCALED: Final[Mapping[str, Case]] = {  # rotations that transformers does not take from a file
    "llama, llama3": Case("llama", {"rope_parameters": LLAMA3}),
    "llama, yarn": Case("llama", {"rope_parameters": YARN}),
    "llama, linear": Case("llama", {"rope_parameters": LINEAR}),
    "qwen2, linear": Case("qwen2", {"rope_parameters": LINEAR}),
    "qwen3, yarn": Case("qwen3", {"rope_parameters": YARN}),
    "gemma3_text, linear": Case(
        "gemma3_text",
        {
            "rope_parameters": {
                "full_attention": LINEAR,
                "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
            }
        },
    ),
}


def make_model(model_type: str, **changes: Any) -> Any:
    config: Any = AutoConfig.for_model(model_type, **{**SIZES, **OTHERWISE.get(model_type, {}), **changes})
    with torch.random.fork_rng():
        torch.manual_seed(7)
        model = AutoModelForCausalLM.from_config(config).eval()
        for weight in model.parameters():
            if weight.dim() == 1:  # norms and biases that are not ones and zeros
                weight.data.add_(torch.empty(weight.shape).normal_(0, 0.1))
    return model


def make_base(directory: Path, model_type: str, *, tokenizer: str = "qwen3", **changes: Any) -> BaseModel:
    """A base model and its directory, with the tokenizer of a made model."""
    model = make_model(model_type, **changes)
    model.save_pretrained(directory)
    write_tokenizer(directory, tokenizer)
    return prepare_base_model("tiny", directory, model, tiny_tokenizer())


def write_tokenizer(directory: Path, name: str) -> None:
    family = FAMILIES["llama" if name == "llama" else "qwen3"]
    build_tokenizer(family, vocab_size=TOKENS).save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(json.dumps(tokenizer_config(family, longest=64)))
    (directory / "chat_template.jinja").write_text(family.chat_template)


def save(base: BaseModel, store: Path, *, rank: int = 4, **flags: bool) -> TrainedRun:
    """A run whose checkpoint is "one" in the store."""
    run = make_run(base, rank=rank, **flags)
    with open_desk(store) as desk:
        desk.save(run, "one", kind="sampler_weights")
    return run


def export(store: Path, base: Path, target: Path, options: GgufOptions | None = None, **more: Any) -> GgufReport:
    with open_desk(store) as desk, desk.open("one") as archive:
        return export_gguf(archive, base, target, options or GgufOptions(), **more)
