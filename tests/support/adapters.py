"""Adapters as PEFT writes them, for the layers of the fake backend or of any model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from safetensors.numpy import save

from support.engine.fake_backend import LAYERS


def config(rank: int = 4, **options: Any) -> bytes:
    ordinary = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": rank,
        "lora_alpha": 32,
        "lora_dropout": 0.1,
        "bias": "none",
        "target_modules": ["q_proj", "up_proj"],
    }
    return json.dumps({**ordinary, **options}).encode()


def matrices(rank: int = 4, *, layers: tuple[str, ...] = LAYERS, seed: int = 0) -> dict[str, Any]:
    """Names as in the file, and numbers."""
    draw = np.random.default_rng(seed)
    found: dict[str, Any] = {}
    for layer in layers:
        found[f"base_model.model.{layer}.lora_A.weight"] = draw.standard_normal((rank, 4), np.float32)
        found[f"base_model.model.{layer}.lora_B.weight"] = draw.standard_normal((3, rank), np.float32)
    return found


def adapter_files(rank: int = 4, tensors: Mapping[str, Any] | None = None, **options: Any) -> dict[str, bytes]:
    model = save(dict(matrices(rank) if tensors is None else tensors))
    return {"adapter_config.json": config(rank, **options), "adapter_model.safetensors": model}
