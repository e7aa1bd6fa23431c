"""The adapter cache: keeps prepared adapters for later requests, up to a number of bytes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Final, Generic, TypeVar

from chockstone.sampling.adapter import Adapter

_KEPT_BYTES: Final = 256 << 20  # of adapters before preparation; prepared ones may be a few times as large

Prepared = TypeVar("Prepared")


class AdapterCache(Generic[Prepared]):
    """``prepare`` makes a prepared adapter. Requests keep theirs alive when the cache drops it."""

    def __init__(self, prepare: Callable[[Adapter], Prepared]) -> None:
        self._prepare = prepare
        self._kept: OrderedDict[int, tuple[Adapter, Prepared]] = OrderedDict()  # by id

    def get(self, adapter: Adapter) -> Prepared:
        if id(adapter) not in self._kept:
            self._kept[id(adapter)] = (adapter, self._prepare(adapter))
        self._kept.move_to_end(id(adapter))
        while len(self._kept) > 1 and sum(_size(one) for one, _ in self._kept.values()) > _KEPT_BYTES:
            self._kept.popitem(last=False)
        return self._kept[id(adapter)][1]


def _size(adapter: Adapter) -> int:
    return sum(layer.down.nbytes + layer.up.nbytes for layer in adapter.layers.values())
