"""Flat parameters: named tensors laid end to end in one float32 tensor.

Optimizers, clipping, finiteness checks and snapshots work on the whole with one operation. Autograd
works on *leaves*: views of the same memory, whose ``grad`` is a view of whichever flat gradient is
being filled.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final, Protocol

import numpy as np
import torch

Shapes = Mapping[str, tuple[int, ...]]
_ROW: Final = 1024
_LEAST: Final = 1e-10  # below it, squares that vanish in float32 may count


class Parameters(Protocol):
    """A run's weights as this process has them: all of them, or its part of each."""

    shapes: dict[str, tuple[int, ...]]  # of the whole tensors
    flat: torch.Tensor  # what of them is here; may be changed in place whenever no pass is running

    def views(self, flat: torch.Tensor) -> dict[str, torch.Tensor]:
        """The named tensors, or parts, inside a flat one of this layout: weights, gradients or moments."""

    def accumulating(self, gradient: torch.Tensor | None) -> AbstractContextManager[None]:
        """Inside, backward passes add to the flat ``gradient``; with None nothing records a graph."""

    def norm(self, flat: torch.Tensor) -> float:
        """Of the whole tensor that ``flat`` is, or is a part of. Finite if every element is, and only then."""

    def named(self, flat: torch.Tensor) -> dict[str, Any]:  # Any: whatever the checkpointer takes for a tensor
        """The whole named tensors, for a state to be saved."""

    def whole(self, flat: torch.Tensor) -> Any:  # Any: as above
        """The whole flat tensor, for a state to be saved."""

    def part(self, name: str, whole: Any) -> torch.Tensor:  # Any: as above
        """What of a whole named tensor, as it was read, belongs here."""

    def flat_part(self, whole: Any) -> torch.Tensor:  # Any: as above
        """What of a whole flat tensor, as it was read, belongs here."""


class FlatParameters:
    """All of them here. Zeros at first."""

    def __init__(self, shapes: Shapes, *, device: torch.device) -> None:
        self.shapes: dict[str, tuple[int, ...]] = dict(shapes)
        self.flat = torch.zeros(sum(map(math.prod, self.shapes.values())), dtype=torch.float32, device=device)
        self.leaves = {name: view.detach().requires_grad_() for name, view in self.views(self.flat).items()}

    def views(self, flat: torch.Tensor) -> dict[str, torch.Tensor]:
        pieces = torch.split(flat, [math.prod(shape) for shape in self.shapes.values()])
        return {name: piece.view(shape) for (name, shape), piece in zip(self.shapes.items(), pieces, strict=True)}

    @contextmanager
    def accumulating(self, gradient: torch.Tensor | None) -> Iterator[None]:
        if gradient is None:
            with torch.no_grad():
                yield
            return
        for leaf, piece in zip(self.leaves.values(), self.views(gradient).values(), strict=True):
            leaf.grad = piece
        try:
            with torch.enable_grad():
                yield
        finally:
            for leaf in self.leaves.values():
                leaf.grad = None

    def norm(self, flat: torch.Tensor) -> float:
        return measure_norm(flat)

    def named(self, flat: torch.Tensor) -> dict[str, Any]:
        return dict(self.views(flat))

    def whole(self, flat: torch.Tensor) -> Any:
        return flat

    def part(self, name: str, whole: torch.Tensor) -> torch.Tensor:  # noqa: ARG002  # all of any
        return whole

    def flat_part(self, whole: torch.Tensor) -> torch.Tensor:
        return whole


def measure_norm(flat: torch.Tensor) -> float:
    """Finite if every element is, and only then.

    Squares are summed up in float32 by rows, and these in float64: twenty times as fast as float64 throughout, which
    is left for numbers whose squares are outside of float32's range.
    """
    count = len(flat) // _ROW
    rows = torch.linalg.vector_norm(flat[: count * _ROW].view(count, _ROW), dim=1)
    rest = torch.linalg.vector_norm(flat[count * _ROW :])
    norm = float(torch.linalg.vector_norm(torch.cat([rows, rest[None]]), dtype=torch.float64))
    if _LEAST < norm < math.inf:
        return norm
    return float(torch.linalg.vector_norm(flat, dtype=torch.float64))


def blank_like(flat: torch.Tensor) -> torch.Tensor:
    """Zeros. On a CPU the kernel makes them as they are touched, in large pages, which takes half as long."""
    if flat.device.type != "cpu":
        return torch.zeros_like(flat)
    return torch.from_numpy(np.zeros(len(flat), dtype=np.float32))
