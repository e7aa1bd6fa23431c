"""The shelf: weights that samplers use, kept in memory while there is room.

Weights are named by their archive. Those that were not used for longest make room; they come back
from the store when they are asked for again. Weights without an archive on disk stay.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from chockstone.backends.worker.sampler_weights import Weights


class WeightsCache:
    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._weights: OrderedDict[str, Weights] = OrderedDict()
        self._held: set[str] = set()  # not on disk yet
        self._bytes = 0

    def get(self, archive: str) -> Weights | None:
        weights = self._weights.get(archive)
        if weights is not None:
            self._weights.move_to_end(archive)
        return weights

    def put(self, archive: str, weights: Weights, *, is_durable: bool) -> None:
        self.forget(archive)
        self._weights[archive] = weights
        self._bytes += weights.size_bytes
        if not is_durable:
            self._held.add(archive)
        self._make_room(lambda name: name != archive)

    def settled(self, archive: str) -> None:
        """The archive is on disk now, from where the weights can come back."""
        self._held.discard(archive)
        self._make_room(lambda _: True)

    def forget(self, archive: str) -> None:
        self._held.discard(archive)
        if (weights := self._weights.pop(archive, None)) is not None:
            self._bytes -= weights.size_bytes

    def _make_room(self, may_go: Callable[[str], bool]) -> None:
        for name in list(self._weights):
            if self._bytes <= self._limit:
                return
            if may_go(name) and name not in self._held:
                self.forget(name)
