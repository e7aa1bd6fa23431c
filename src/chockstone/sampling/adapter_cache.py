"""Prepared adapters: kept for the next request that uses them, up to a number of bytes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Final, Generic, TypeVar

from chockstone.sampling.adapter import Adapter

_KEPT_BYTES: Final = 256 << 20  # of adapters as they came; prepared they may be a few times that

Prepared = TypeVar("Prepared")


class AdapterCache(Generic[Prepared]):
    """``prepare`` makes one; what requests hold lives on with them, kept here or not."""

    def __init__(self, prepare: Callable[[Adapter], Prepared]) -> None:
        self._prepare = prepare
        self._kept: OrderedDict[int, tuple[Adapter, Prepared]] = OrderedDict()  # an adapter held keeps its id

    def get(self, adapter: Adapter) -> Prepared:
        if id(adapter) not in self._kept:
            self._kept[id(adapter)] = (adapter, self._prepare(adapter))
        self._kept.move_to_end(id(adapter))
        while len(self._kept) > 1 and sum(_size(one) for one, _ in self._kept.values()) > _KEPT_BYTES:
            self._kept.popitem(last=False)
        return self._kept[id(adapter)][1]


def _size(adapter: Adapter) -> int:
    return sum(layer.down.nbytes + layer.up.nbytes for layer in adapter.layers.values())
