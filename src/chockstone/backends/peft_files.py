"""PEFT files: a LoRA run's matrices as the ``peft`` package, vLLM and others load them."""

from __future__ import annotations

import json
from collections.abc import Mapping

import torch

from chockstone.backends.lora import ALPHA
from chockstone.sampling.adapter import Adapter


def peft_files(
    adapter: Adapter, *, rank: int, base_model: str, layer_names: Mapping[str, object]
) -> tuple[bytes, dict[str, torch.Tensor]]:
    """``adapter_config.json``, and the tensors of ``adapter_model.safetensors``.

    ``layer_names`` are all linear layers of the base model.
    """
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
        "target_modules": _targets(list(adapter.layers), list(layer_names)),
    }
    tensors: dict[str, torch.Tensor] = {}
    for name, layer in adapter.layers.items():
        tensors[f"base_model.model.{name}.lora_A.weight"] = layer.down
        tensors[f"base_model.model.{name}.lora_B.weight"] = layer.up
    return json.dumps(config, indent=2).encode(), tensors


def _targets(chosen: list[str], layer_names: list[str]) -> list[str]:
    """Last parts of names ("q_proj") where they select the chosen layers and no others, else whole names."""
    endings = {name.rpartition(".")[2] for name in chosen}
    selected = {name for name in layer_names if name.rpartition(".")[2] in endings}
    return sorted(endings) if selected == set(chosen) else chosen
