"""The prefix cache: keys and values of prompt blocks that earlier requests have computed.

A block is found by a chain of hashes: of the weights, the owner, all tokens before it and its own. The cache compares
weights as objects, so different weights never share a block, whatever their names. Owners do not share: neither time
nor the count of hits shows one user what another has asked.

The network computes a block with the same bits in every request, so a result does not depend on what is cached.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterable, MutableMapping
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
import torch


class PrefixCache:
    """Blocks that were not used for longest are dropped first. Its numbers may be read from any thread."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.hit_tokens = 0
        self._room_bytes = limit_bytes  # at present: other uses of the memory come first
        self._blocks: OrderedDict[bytes, torch.Tensor] = OrderedDict()
        self.size_bytes = 0
        self.evicted_blocks = 0
        self._numbers: MutableMapping[object, int] = WeakKeyDictionary()  # of weights
        self._next_number = 0

    def keys(self, owner: str, weights: Iterable[object], tokens: npt.NDArray[np.int64], *, block: int) -> list[bytes]:
        """The key of each whole block of a prompt. ``weights``: the objects that determine what a block holds."""
        if not block or not self.limit_bytes:
            return []
        numbers = [self._number(one) for one in weights]
        key = hashlib.blake2b(repr((owner, numbers, block)).encode(), digest_size=32).digest()
        found = []
        for start in range(0, len(tokens) - block + 1, block):
            key = hashlib.blake2b(key + tokens[start : start + block].tobytes(), digest_size=32).digest()
            found.append(key)
        return found

    def get(self, key: bytes) -> torch.Tensor | None:
        return self._blocks.get(key)

    def __contains__(self, key: bytes) -> bool:
        return key in self._blocks

    def add(self, key: bytes, content: torch.Tensor) -> None:
        if key in self._blocks or content.nbytes > self._room_bytes:
            return
        self._blocks[key] = content
        self.size_bytes += content.nbytes
        self._evict()

    def touch(self, keys: Iterable[bytes]) -> None:
        """The blocks of one prompt, in its order, were just used: the first of them stay longest."""
        for key in reversed(list(keys)):
            if key in self._blocks:
                self._blocks.move_to_end(key)

    def fit(self, room_bytes: int) -> None:
        """From now on, take at most so many bytes, and at most the limit."""
        self._room_bytes = max(0, min(self.limit_bytes, room_bytes))
        self._evict()

    def _number(self, weights: object) -> int:
        if weights not in self._numbers:
            self._next_number += 1
            self._numbers[weights] = self._next_number
        return self._numbers[weights]

    def _evict(self) -> None:
        while self.size_bytes > self._room_bytes:
            _, content = self._blocks.popitem(last=False)
            self.size_bytes -= content.nbytes
            self.evicted_blocks += 1
