"""LoRA adapters: low-rank additions to the linear layers of a base model, as plain tensors."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

import torch

_KEPT_BYTES: Final = 256 << 20  # of adapters before preparation; prepared they may take a few times that

Prepared = TypeVar("Prepared")


@dataclass(frozen=True, slots=True)
class LowRank:
    """``y += scale * up @ (down @ x)`` for one linear layer, or for each of the experts of a layer."""

    down: torch.Tensor  # [rank, in], or [experts, rank, in]
    up: torch.Tensor  # [out, rank], or [experts, out, rank]


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Adapter:
    """One adapter's layers, by name in the base model ("model.layers.0.self_attn.q_proj", "lm_head").

    An adapter is a snapshot: its tensors do not change.
    """

    layers: Mapping[str, LowRank]
    scale: float


class AdapterCache(Generic[Prepared]):
    """LRU cache of what ``prepare`` makes of adapters. Running requests hold theirs, whether it is evicted or not."""

    def __init__(self, prepare: Callable[[Adapter], Prepared]) -> None:
        self._prepare = prepare
        self._kept: OrderedDict[int, tuple[Adapter, Prepared]] = (
            OrderedDict()
        )  # by id: the entry holds the adapter, so that the id is not reused

    def get(self, adapter: Adapter) -> Prepared:
        if id(adapter) not in self._kept:
            self._kept[id(adapter)] = (adapter, self._prepare(adapter))
        self._kept.move_to_end(id(adapter))
        while len(self._kept) > 1 and sum(_size(one) for one, _ in self._kept.values()) > _KEPT_BYTES:
            self._kept.popitem(last=False)
        return self._kept[id(adapter)][1]


def _size(adapter: Adapter) -> int:
    return sum(layer.down.nbytes + layer.up.nbytes for layer in adapter.layers.values())
