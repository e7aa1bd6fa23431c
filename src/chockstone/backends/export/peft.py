"""PEFT configurations: ``adapter_config.json`` of a LoRA run, as the ``peft`` package and vLLM read it."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Final

from chockstone.backends.export.expert_files import ExpertFiles, is_expert_weight, split_matrix
from chockstone.backends.run_spec import ALPHA

if TYPE_CHECKING:  # the server writes adapters for vLLM without torch
    import torch

    from chockstone.sampling.adapter import Adapter

ADAPTER_CONFIG: Final = "adapter_config.json"
ADAPTER_MODEL: Final = "adapter_model.safetensors"


def render_peft_config(
    *, rank: int, base_model: str, targets: Collection[str], parameters: Collection[str] = ()
) -> bytes:
    """``targets`` are full names of layers, or last parts of names if those select the same layers.

    ``parameters`` are names of fused experts' weights.
    """
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
    if parameters:
        config["target_parameters"] = list(parameters)
    return json.dumps(config, indent=2).encode()


def peft_key(layer: str, matrix: str) -> str:
    """The name of a layer's ``lora_A`` or ``lora_B``."""
    return f"base_model.model.{layer}.{matrix}.weight"


def peft_files(
    adapter: Adapter,
    *,
    rank: int,
    base_model: str,
    layer_names: Mapping[str, object],
    expert_files: ExpertFiles | None = None,
) -> tuple[bytes, dict[str, torch.Tensor]]:
    """``adapter_config.json``, and the tensors of ``adapter_model.safetensors``.

    ``layer_names`` are all layers of the base model that can be adapted.
    """
    tensors: dict[str, torch.Tensor] = {}
    experts: dict[str, tuple[str, ...]] = {}  # by weight: its layers by expert
    for name, layer in adapter.layers.items():
        if not is_expert_weight(tuple(layer.down.shape)):
            tensors[peft_key(name, "lora_A")] = layer.down
            tensors[peft_key(name, "lora_B")] = layer.up
            continue
        downs = dict(split_matrix(name, "lora_A", layer.down, expert_files))
        ups = dict(split_matrix(name, "lora_B", layer.up, expert_files))
        seen: set[int] = set()
        for part in downs:
            down = downs[part]
            tensors[peft_key(part, "lora_A")] = down.clone() if down.data_ptr() in seen else down  # gate's is up's, too
            seen.add(down.data_ptr())
            tensors[peft_key(part, "lora_B")] = ups[part]
        experts[name] = tuple(downs)
    targets, parameters = choose_targets(
        [name for name in adapter.layers if name not in experts],
        [name for name in layer_names if name not in experts],
        experts,
        expert_files,
    )
    config = render_peft_config(rank=rank, base_model=base_model, targets=targets, parameters=parameters)
    return config, tensors


def choose_targets(
    chosen: Collection[str],
    layer_names: Collection[str],
    experts: Mapping[str, Collection[str]],
    expert_files: ExpertFiles | None,
) -> tuple[list[str], list[str]]:
    """``target_modules`` and ``target_parameters``: names of linear layers, and of experts by weight."""
    if expert_files is None:
        return _targets(chosen, layer_names), list(experts)
    parts = {part for layers in experts.values() for part in layers}
    if not parts:
        return _targets(chosen, layer_names), []
    targets = _targets([*chosen, *parts], [*layer_names, *parts])
    endings = {part.rpartition(".")[2] for part in parts}
    return sorted({name for name in targets if name not in parts} | endings), []


def _targets(chosen: Collection[str], layer_names: Collection[str]) -> list[str]:
    """Last parts of names ("q_proj") if they select the chosen layers and no others, else full names."""
    endings = {name.rpartition(".")[2] for name in chosen}
    selected = {name for name in layer_names if name.rpartition(".")[2] in endings}
    return sorted(endings) if selected == set(chosen) else list(chosen)
