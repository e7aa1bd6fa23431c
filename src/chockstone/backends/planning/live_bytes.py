"""Live bytes: how much memory the tensors take that are created inside of a block, now and at the most."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveBytes(TorchDispatchMode):
    """Counts each piece of memory on ``device`` from its allocation until nothing refers to it any more.

    Memory that exists before the block is not counted. On the meta device nothing is allocated, and all is counted.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # of torch
        self.now = 0
        self.peak = 0
        self._device = device
        self._counted: dict[int, weakref.ref[torch.UntypedStorage]] = {}  # by address of the storage object
        self._earlier: dict[int, torch.UntypedStorage] = {}  # held, so that their addresses are not used again

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:  # Any: as torch calls it
        for tensor in self._tensors((args, kwargs)):
            storage = tensor.untyped_storage()
            if storage._cdata not in self._counted:
                self._earlier[storage._cdata] = storage
        result = func(*args, **(kwargs or {}))
        for tensor in self._tensors(result):
            self._count(tensor.untyped_storage())
        return result

    def _tensors(self, values: Any) -> list[torch.Tensor]:  # Any: as above
        return [
            each
            for each in tree_leaves(values)
            if isinstance(each, torch.Tensor) and each.device.type == self._device.type
        ]

    def _count(self, storage: torch.UntypedStorage) -> None:
        key, size_bytes = storage._cdata, storage.nbytes()
        if key in self._counted or key in self._earlier:
            return

        def free(_: object) -> None:
            self._counted.pop(key, None)
            self.now -= size_bytes

        self._counted[key] = weakref.ref(storage, free)
        self.now += size_bytes
        self.peak = max(self.peak, self.now)
