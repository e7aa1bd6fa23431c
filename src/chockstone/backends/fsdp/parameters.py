"""Sharded parameters: this process's rows of every weight, concatenated in one float32 tensor."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from chockstone.backends.fsdp.model_shards import ModelShards
from chockstone.backends.training.flat_parameters import measure_norm
from chockstone.checkpoints.format.shards import Pieces


class ShardedParameters:
    """Implements ``Parameters`` for a sharded model. Initially a copy of the model's weights."""

    def __init__(self, shards: ModelShards) -> None:
        self._shards = shards
        self._shares = shards.shares
        self.shapes = {name: share.shape for name, share in self._shares.items()}
        self._sizes = [math.prod(share.local_shape) for share in self._shares.values()]
        device = next(iter(shards.weights.values())).device
        self.flat = torch.zeros(sum(self._sizes), dtype=torch.float32, device=device)
        for name, view in self.views(self.flat).items():
            view.copy_(shards.local(name))

    def views(self, flat: torch.Tensor) -> dict[str, torch.Tensor]:
        pieces = zip(self._shares.items(), torch.split(flat, self._sizes), strict=True)
        return {name: piece.view(share.local_shape) for (name, share), piece in pieces}

    @contextmanager
    def accumulating(self, gradient: torch.Tensor | None) -> Iterator[None]:
        """FSDP reduces gradients: each process gets the sum over all processes for its own rows."""
        if gradient is None:
            with torch.no_grad():
                yield
            return
        try:
            with torch.enable_grad():
                yield
            for name, piece in self.views(gradient).items():
                if isinstance(grad := self._shards.weights[name].grad, DTensor):
                    piece.add_(grad.to_local())
        finally:
            for weight in self._shards.weights.values():
                weight.grad = None

    def norm(self, flat: torch.Tensor) -> float:
        total = torch.tensor([measure_norm(flat) ** 2], dtype=torch.float64)
        self._shards.process_group.sum_in_place(total)
        return math.sqrt(float(total))

    def named(self, flat: torch.Tensor) -> dict[str, Any]:
        pieces = zip(self._shares.items(), torch.split(flat, self._sizes), strict=True)
        return {
            name: Pieces(share.shape, flat.dtype, [(share.first_element, piece)]) for (name, share), piece in pieces
        }

    def whole(self, flat: torch.Tensor) -> Pieces:
        pieces: list[tuple[int, torch.Tensor]] = []
        start = 0
        for share, piece in zip(self._shares.values(), torch.split(flat, self._sizes), strict=True):
            pieces.append((start + share.first_element, piece))
            start += math.prod(share.shape)
        return Pieces((start,), flat.dtype, pieces)

    def part(self, name: str, whole: torch.Tensor | Pieces) -> torch.Tensor:
        share = self._shares[name]
        if isinstance(whole, Pieces):
            return _together(whole).view(share.local_shape)
        return whole[share.rows]

    def flat_part(self, whole: torch.Tensor | Pieces) -> torch.Tensor:
        if isinstance(whole, Pieces):
            return _together(whole)
        parts = []
        start = 0
        for share, size in zip(self._shares.values(), self._sizes, strict=True):
            parts.append(whole[start + share.first_element :][:size])
            start += math.prod(share.shape)
        return torch.cat(parts)


def _together(pieces: Pieces) -> torch.Tensor:
    return torch.cat([piece for _, piece in pieces.pieces])
