"""Loaders: the order of the problems, and the state to continue it in another process.

A loader need not be thread-safe: the trainer calls it in the event loop's thread only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from chockstone.trainers.errors import ResumeRefused


@dataclass(frozen=True, slots=True)
class ProblemDraw:
    """One problem taken from the loader."""

    number: int  # draws before this one
    epoch: int
    index: int  # of the problem in its environment


class Loader(Protocol):
    """The order in which a trainer takes problems. Its state is saved with the weights."""

    def draw(self) -> ProblemDraw:
        """Take the next problem."""

    def state_dict(self) -> dict[str, Any]:
        """Return the position, as values that a checkpoint can hold."""

    def load_state_dict(self, state: Mapping[str, Any], /) -> None:
        """Return to a position. Raises ResumeRefused if the state is of another loader."""


class ShuffledLoader:
    """Draws every problem once per epoch. The order depends on the seed and the epoch only."""

    def __init__(self, count: int, *, seed: int) -> None:
        if count < 1:
            raise ValueError("an environment needs at least one problem")
        self._count = count
        self._seed = seed
        self._drawn = 0
        self._order = self._order_of(0)

    def draw(self) -> ProblemDraw:
        epoch, position = divmod(self._drawn, self._count)
        if position == 0:
            self._order = self._order_of(epoch)
        self._drawn += 1
        return ProblemDraw(self._drawn - 1, epoch, int(self._order[position]))

    def state_dict(self) -> dict[str, Any]:
        return {"count": self._count, "seed": self._seed, "drawn": self._drawn, "order": self._order}

    def load_state_dict(self, state: Mapping[str, Any], /) -> None:
        if (state.get("count"), state.get("seed")) != (self._count, self._seed):
            raise ResumeRefused(
                f"the state is of {state.get('count')} problems shuffled with seed {state.get('seed')}; "
                f"this run has {self._count} with seed {self._seed}. Use the same settings, or another directory."
            )
        drawn, order = state.get("drawn"), np.array(state.get("order"))  # not a view of the archive's file
        if not isinstance(drawn, int) or drawn < 0 or not np.array_equal(np.sort(order, None), np.arange(self._count)):
            raise ResumeRefused(f"the state is not a loader's: {drawn!r} draws, or the order lacks some problem.")
        self._drawn, self._order = drawn, order

    def _order_of(self, epoch: int) -> npt.NDArray[np.int64]:
        """Shuffle with numpy: Python would block the event loop for most of a second with a million problems."""
        return np.random.default_rng([self._count, self._seed, epoch]).permutation(self._count)
