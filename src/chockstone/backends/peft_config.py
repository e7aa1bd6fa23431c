"""PEFT configurations: ``adapter_config.json`` of a LoRA run, as the ``peft`` package and vLLM read it."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Final

from chockstone.backends.spec import ALPHA

ADAPTER_CONFIG: Final = "adapter_config.json"
ADAPTER_MODEL: Final = "adapter_model.safetensors"


def render_peft_config(*, rank: int, base_model: str, targets: Collection[str]) -> bytes:
    """``targets`` are whole names of layers, or last parts of names where those select the same."""
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base_model,
        "r": rank,
        "lora_alpha": int(ALPHA),  # a whole number, as readers declare it
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        "init_lora_weights": True,
        "target_modules": list(targets),
    }
    return json.dumps(config, indent=2).encode()


def peft_key(layer: str, matrix: str) -> str:
    """The name of a layer's ``lora_A`` or ``lora_B``."""
    return f"base_model.model.{layer}.{matrix}.weight"
