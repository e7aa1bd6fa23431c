"""Fused adapters: one LoRA adapter prepared for the fused matrix products of a model.

Shapes: R rank, of all parts of a product together.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Final

import torch

from chockstone.sampling.adapter import Adapter, LowRank
from chockstone.sampling.fused.weights import FusedWeights, Matrix
from chockstone.sampling.quantised.weight import FrozenWeight, QuantisedWeight, dense
from chockstone.wire.failures import ServerFailure

MERGE_BYTES: Final = (
    64 << 20
)  # of all matrices of a model; below, a merged copy of the weights is faster than additions


@dataclass(frozen=True, slots=True)
class Addition:
    """``y += (x @ down_t) @ up_t``"""

    down_t: torch.Tensor  # [in, R]
    up_t: torch.Tensor  # [R, out], zero where a part's rank meets another part's outputs


@dataclass(frozen=True, slots=True, eq=False)
class FusedAdapter:
    """By product number. Either ``weights`` are merged with the adapter, or ``additions`` hold it."""

    weights: tuple[FrozenWeight, ...]
    additions: tuple[Addition | None, ...]
    experts: ExpertAdapter


@dataclass(frozen=True, slots=True, eq=False)
class ExpertAdapter:
    """Matrices of routed experts, by the names of their weights."""

    layers: Mapping[str, LowRank]
    scale: float


def check_adapter(adapter: Adapter, known: Set[str]) -> None:
    if unknown := sorted(set(adapter.layers) - known):
        raise ServerFailure(
            f"the adapter has layers that its base model lacks: {', '.join(map(repr, unknown[:3]))}; "
            "it belongs to another base model"
        )
    for name, layer in adapter.layers.items():
        if not bool(torch.isfinite(layer.down).all() and torch.isfinite(layer.up).all()):
            raise ServerFailure(
                f"the adapter's weights for {name!r} hold NaN or infinity; go back to a checkpoint from before"
            )


@torch.no_grad()
def fuse_adapter(adapter: Adapter, weights: FusedWeights) -> FusedAdapter:
    matrices = weights.matrices
    expert_names = {name for layer in weights.layers for name in layer.expert_names}
    check_adapter(adapter, {name for matrix in matrices for name, _ in matrix.parts} | expert_names)
    device = weights.embedding.device
    experts = ExpertAdapter(
        {
            name: LowRank(layer.down.to(device), layer.up.to(device))
            for name, layer in adapter.layers.items()
            if name in expert_names
        },
        adapter.scale,
    )
    additions = tuple(_addition(matrix, adapter) for matrix in matrices)
    base = tuple(matrix.weight for matrix in matrices)
    if not is_merging(weights):
        return FusedAdapter(base, additions, experts)
    merged = tuple(
        weight if addition is None else torch.addmm(dense(weight), addition.up_t.t(), addition.down_t.t())
        for weight, addition in zip(base, additions, strict=True)
    )
    return FusedAdapter(merged, (None,) * len(matrices), experts)


def fuse_base(weights: FusedWeights) -> FusedAdapter:
    """The base model itself, as the adapter that changes nothing."""
    matrices = weights.matrices
    return FusedAdapter(tuple(matrix.weight for matrix in matrices), (None,) * len(matrices), ExpertAdapter({}, 1.0))


def is_merging(weights: FusedWeights) -> bool:
    """Merging rounds to the model's precision, so only float32 models merge, and only small ones.

    A quantised model does not merge: each adapter would have a full copy of the weights.
    """
    if any(isinstance(matrix.weight, QuantisedWeight) for matrix in weights.matrices):
        return False
    size = sum(matrix.weight.nbytes for matrix in weights.matrices)
    return weights.embedding.dtype == torch.float32 and size <= MERGE_BYTES


def _addition(matrix: Matrix, adapter: Adapter) -> Addition | None:
    parts: list[tuple[int, LowRank]] = []
    start = 0
    for name, width in matrix.parts:
        if (layer := adapter.layers.get(name)) is not None:
            parts.append((start, layer))
        start += width
    if not parts:
        return None
    like = matrix.weight
    downs = torch.cat([layer.down for _, layer in parts]).to(like.device, like.dtype)
    up_t = torch.zeros(len(downs), start, dtype=like.dtype, device=like.device)
    row = 0
    for begin, layer in parts:
        out, rank = layer.up.shape
        up_t[row : row + rank, begin : begin + out] = (layer.up * adapter.scale).t()
        row += rank
    return Addition(downs.t().contiguous(), up_t)
