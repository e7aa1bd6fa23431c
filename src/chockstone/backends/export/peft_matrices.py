"""PEFT matrices: the tensors of ``adapter_model.safetensors`` as the layers of an adapter, experts fused again.

The tensors are untrusted input: what does not fit together raises BadRequest.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Final

import torch

from chockstone.backends.export.expert_files import ExpertFiles, find_expert_part, fused_matrix
from chockstone.sampling.adapter import LowRank
from chockstone.wire.failures import BadRequest

_PREFIX: Final = "base_model.model."
_FUSED_FIRST: Final = ".experts.base_layer"
_FUSED_LAST: Final = ".experts"


def read_peft_matrices(
    tensors: Mapping[str, torch.Tensor], *, rank: int, files: ExpertFiles | None, first_name: str = "gate_up_proj"
) -> dict[str, LowRank]:
    """By the names of layers in memory. ``first_name`` is how the base model calls the first weight of its experts."""
    layers: dict[str, LowRank] = {}
    experts: dict[str, dict[tuple[int, int], LowRank]] = defaultdict(dict)  # by weight, then by part and expert
    for layer, matrices in _pairs(tensors).items():
        if files is not None and (part := find_expert_part(layer, files, first_name)) is not None:
            experts[part.name][part.number, part.expert] = matrices
        elif layer.endswith(_FUSED_FIRST):
            layers[f"{layer.removesuffix('.base_layer')}.{first_name}"] = _fused(layer, matrices, rank)
        elif layer.endswith(_FUSED_LAST):
            layers[f"{layer}.down_proj"] = _fused(layer, matrices, rank)
        else:
            layers[layer] = matrices
    return layers | {name: _stack(name, parts) for name, parts in experts.items()}


def _pairs(tensors: Mapping[str, torch.Tensor]) -> dict[str, LowRank]:
    found = {key.removeprefix(_PREFIX).removesuffix(".weight"): tensor for key, tensor in tensors.items()}
    layers = sorted({name.removesuffix(".lora_A").removesuffix(".lora_B") for name in found})
    if sorted(f"{layer}.{matrix}" for layer in layers for matrix in ("lora_A", "lora_B")) != sorted(found):
        raise BadRequest("the file is not an adapter: its matrices do not come in pairs")
    return {layer: LowRank(found[f"{layer}.lora_A"], found[f"{layer}.lora_B"]) for layer in layers}


def _fused(layer: str, matrices: LowRank, rank: int) -> LowRank:
    down, up = matrices.down, matrices.up
    if down.dim() != 2 or up.dim() != 2 or down.shape[0] != up.shape[1] or down.shape[0] % rank:
        raise BadRequest(f"the matrices of the experts {layer!r} do not fit together, or not to rank {rank}")
    return LowRank(fused_matrix("lora_A", down, rank), fused_matrix("lora_B", up, rank).contiguous())


def _stack(name: str, parts: Mapping[tuple[int, int], LowRank]) -> LowRank:
    numbers, experts = (sorted({key[axis] for key in parts}) for axis in (0, 1))
    if experts != list(range(len(experts))) or len(parts) != len(numbers) * len(experts):
        raise BadRequest(f"the adapter lacks experts of {name!r}")
    try:
        downs = [torch.stack([parts[number, expert].down for expert in experts]) for number in numbers]
        ups = [torch.stack([parts[number, expert].up for expert in experts]) for number in numbers]
    except RuntimeError as error:
        raise BadRequest(f"the matrices of the experts of {name!r} have different shapes") from error
    if not all(torch.equal(downs[0], down) for down in downs):
        raise BadRequest(f"gate and up of {name!r} have different matrices lora_A, which cannot be fused here")
    return LowRank(downs[0], torch.cat(ups, dim=1))
