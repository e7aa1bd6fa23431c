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
    """One adapter's layers, by the module's name in the base model ("model.layers.0.self_attn.q_proj", "lm_head").

    A sampler's adapter is a snapshot: nobody changes these tensors.
    """

    layers: Mapping[str, LowRank]
    scale: float
