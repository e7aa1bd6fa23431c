"""PEFT files: a LoRA run's matrices as the ``peft`` package, vLLM and others load them."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from chockstone.backends.peft_config import peft_key, render_peft_config
from chockstone.sampling.adapter import Adapter


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
    """Last parts of names ("q_proj") where they select the chosen layers and no others, else whole names."""
    endings = {name.rpartition(".")[2] for name in chosen}
    selected = {name for name in layer_names if name.rpartition(".")[2] in endings}
    return sorted(endings) if selected == set(chosen) else chosen
