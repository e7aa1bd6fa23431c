"""Loaders: which problem comes next, and how to go on from there in another process.

A loader need not be thread-safe: it is drawn from, and its state is taken, in the event loop's thread only.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from chockstone.trainers.errors import ResumeRefused


@dataclass(frozen=True, slots=True)
class Draw:
    number: int  # how many were drawn before it
    epoch: int
    index: int  # of the problem in its environment


class Loader(Protocol):
    def draw(self) -> Draw: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: Mapping[str, Any], /) -> None: ...


class ShuffledLoader:
    """Every problem once an epoch, in an order that seed and epoch decide."""

    def __init__(self, count: int, *, seed: int) -> None:
        if count < 1:
            raise ValueError("an environment needs at least one problem")
        self._count = count
        self._seed = seed
        self._drawn = 0
        self._order = self._order_of(0)

    def draw(self) -> Draw:
        epoch, position = divmod(self._drawn, self._count)
        if position == 0:
            self._order = self._order_of(epoch)
        self._drawn += 1
        return Draw(self._drawn - 1, epoch, self._order[position])

    def state_dict(self) -> dict[str, Any]:
        return {"count": self._count, "seed": self._seed, "drawn": self._drawn, "order": np.array(self._order)}

    def load_state_dict(self, state: Mapping[str, Any], /) -> None:
        if (state["count"], state["seed"]) != (self._count, self._seed):
            raise ResumeRefused(
                f"the state is of {state['count']} problems shuffled with seed {state['seed']}; "
                f"here are {self._count} with seed {self._seed}. Go on with the same, or begin in another directory."
            )
        self._drawn = state["drawn"]
        self._order = state["order"].tolist()

    def _order_of(self, epoch: int) -> list[int]:
        order = list(range(self._count))
        random.Random(f"{self._seed}/{epoch}").shuffle(order)  # noqa: S311  # an order, not a secret
        return order
