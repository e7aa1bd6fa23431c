"""PEFT configurations: ``adapter_config.json`` of a LoRA run, as the ``peft`` package and vLLM read it."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Final

from chockstone.backends.run_spec import ALPHA

if TYPE_CHECKING:  # the server writes adapters for vLLM without torch
    import torch

    from chockstone.sampling.adapter import Adapter

ADAPTER_CONFIG: Final = "adapter_config.json"
ADAPTER_MODEL: Final = "adapter_model.safetensors"


def render_peft_config(*, rank: int, base_model: str, targets: Collection[str]) -> bytes:
    """``targets`` are full names of layers, or last parts of names if those select the same layers."""
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base_model,
        "r": rank,
        "lora_alpha": int(ALPHA),  # readers declare an integer
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


def peft_files(
    adapter: Adapter, *, rank: int, base_model: str, layer_names: Mapping[str, object]
) -> tuple[bytes, dict[str, torch.Tensor]]:
    """``adapter_config.json``, and the tensors of ``adapter_model.safetensors``.

    ``layer_names`` are all linear layers of the base model.
    """
    targets = _targets(list(adapter.layers), list(layer_names))
    tensors: dict[str, torch.Tensor] = {}
    for name, layer in adapter.layers.items():
        tensors[peft_key(name, "lora_A")] = layer.down
        tensors[peft_key(name, "lora_B")] = layer.up
    return render_peft_config(rank=rank, base_model=base_model, targets=targets), tensors


def _targets(chosen: list[str], layer_names: list[str]) -> list[str]:
    """Last parts of names ("q_proj") if they select the chosen layers and no others, else full names."""
    endings = {name.rpartition(".")[2] for name in chosen}
    selected = {name for name in layer_names if name.rpartition(".")[2] in endings}
    return sorted(endings) if selected == set(chosen) else chosen
