"""Limits: what a state from a file may cost. A file of a few bytes must not become a state that fills the machine."""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from chockstone.checkpoints.errors import ImportRefused
from chockstone.checkpoints.format.outline import MAX_NODES
from chockstone.checkpoints.format.tree import MAX_DEPTH

_MAX_FACTOR: Final = 16  # of tensors to bytes of their file: views may share memory
_ALWAYS_BYTES: Final = 64 * 1024**2


class StateLimits:
    """Rebuilds a state that was read from ``name``, counts on the way, and raises ImportRefused past a limit.

    An object that a file refers to many times becomes many objects in an archive, so they are counted each time.
    """

    def __init__(self, name: str, source_bytes: int) -> None:
        self._name = name
        self._max_bytes = max(_ALWAYS_BYTES, _MAX_FACTOR * source_bytes)
        self._nodes = 0
        self._bytes = 0
        self._seen: set[tuple[object, ...]] = set()

    def rebuild(self, value: Any, convert: Callable[[Any], Any], depth: int = 0) -> Any:  # Any: a state
        """``value`` with each thing that is no container replaced by what ``convert`` makes of it."""
        self._nodes += 1
        if self._nodes > MAX_NODES or depth > MAX_DEPTH:
            raise ImportRefused(
                f"{self._name!r} holds a state of more than {MAX_NODES:,} values or {MAX_DEPTH} levels; no training "
                "state needs that many. Keep large sequences as tensors"
            )
        kind = type(value)
        if kind is list or kind is tuple:
            return kind([self.rebuild(item, convert, depth + 1) for item in value])
        if kind is Counter:
            return Counter(self._items(value, convert, depth))
        if kind is OrderedDict:
            return self._ordered(value, convert, depth)
        if kind is dict:
            return self._items(value, convert, depth)
        converted = convert(value)
        if hasattr(converted, "shape") and hasattr(converted, "dtype"):
            self._count(converted)
        return converted

    def claim(self, size_bytes: int) -> None:
        """Raise ImportRefused if tensors of so many bytes are too many for this source. Call it before they exist."""
        if size_bytes > self._max_bytes:
            raise ImportRefused(
                f"the tensors of {self._name!r} claim more than {self._max_bytes:,} bytes, {_MAX_FACTOR} times what "
                "the file holds: they repeat the same elements. Clone expanded tensors before you save them"
            )

    def _items(self, value: dict[Any, Any], convert: Callable[[Any], Any], depth: int) -> dict[Any, Any]:
        return {key: self.rebuild(item, convert, depth + 1) for key, item in value.items()}

    def _ordered(
        self, value: OrderedDict[Any, Any], convert: Callable[[Any], Any], depth: int
    ) -> OrderedDict[Any, Any]:
        rebuilt = OrderedDict(self._items(value, convert, depth))
        if (metadata := getattr(value, "_metadata", None)) is not None:  # module versions, kept by nn.Module
            rebuilt._metadata = self.rebuild(metadata, convert, depth + 1)  # type: ignore[attr-defined]  # as torch does
        return rebuilt

    def _count(self, value: Any) -> None:
        """Count the bytes of a tensor or array once for each view of memory."""
        is_numpy = isinstance(value, np.ndarray | np.generic)
        itemsize = value.dtype.itemsize
        if not is_numpy:
            if value.layout is not _strided() or value.device.type != "cpu":
                return  # the tree refuses it, with its path
            view = (value.data_ptr(), tuple(value.shape), value.stride(), value.dtype)
            if view in self._seen:
                return
            self._seen.add(view)
        self._bytes += itemsize * math.prod(value.shape)
        self.claim(self._bytes)


def _strided() -> Any:
    import torch

    return torch.strided
