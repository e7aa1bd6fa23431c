"""Adapters: low-rank additions to the linear layers of a base model, as tensors without a model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class LowRank:
    """``y += scale * up @ (down @ x)`` for one linear layer."""

    down: torch.Tensor  # [rank, in]
    up: torch.Tensor  # [out, rank]


@dataclass(frozen=True, slots=True, eq=False)
class Adapter:
    """The layers of one adapter, by the name of the module in the base model ("model.layers.0.mlp.up_proj", "lm_head").

    The adapter of a sampler is a snapshot: its tensors do not change.
    """

    layers: Mapping[str, LowRank]
    scale: float
