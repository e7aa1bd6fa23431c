"""Flat parameters: named tensors concatenated in one float32 tensor.

Optimizers, clipping, finiteness checks and snapshots work on the flat tensor with one operation. Autograd works on
*leaves*: views of the same memory, whose ``grad`` is a view of the flat gradient that is being filled.
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
_LEAST: Final = 1e-10  # below this, squares that underflow in float32 may matter


class Parameters(Protocol):
    """The weights of a run that this process holds: all, or its rows of each."""

    shapes: dict[str, tuple[int, ...]]  # of the whole tensors
    flat: torch.Tensor  # the part in this process; may be changed in place while no pass is running

    def views(self, flat: torch.Tensor) -> dict[str, torch.Tensor]:
        """Views of the named tensors, or of their parts, in a flat tensor: of weights, gradients or moments."""

    def accumulating(self, gradient: torch.Tensor | None) -> AbstractContextManager[None]:
        """Inside, backward passes add to the flat ``gradient``. With None no graph is recorded."""

    def norm(self, flat: torch.Tensor) -> float:
        """The norm of the whole tensor, over all processes. It is finite if and only if every element is."""

    def named(self, flat: torch.Tensor) -> dict[str, Any]:  # Any: what the checkpointer takes as a tensor
        """The whole named tensors, for a state to be saved."""

    def whole(self, flat: torch.Tensor) -> Any:  # Any: as above
        """The whole flat tensor, for a state to be saved."""

    def part(self, name: str, whole: Any) -> torch.Tensor:  # Any: as above
        """The part of a whole named tensor that belongs to this process."""

    def flat_part(self, whole: Any) -> torch.Tensor:  # Any: as above
        """The part of a whole flat tensor that belongs to this process."""


class FlatParameters:
    """All weights are in this process. Initially zero."""

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

    def part(self, name: str, whole: torch.Tensor) -> torch.Tensor:  # noqa: ARG002  # this process has all
        return whole

    def flat_part(self, whole: torch.Tensor) -> torch.Tensor:
        return whole


def measure_norm(flat: torch.Tensor) -> float:
    """The norm of a tensor. It is finite if and only if every element is.

    Squares are summed in float32 by rows, and the rows in float64. That is twenty times as fast as float64 throughout,
    which is used only if squares are outside the range of float32.
    """
    count = len(flat) // _ROW
    rows = torch.linalg.vector_norm(flat[: count * _ROW].view(count, _ROW), dim=1)
    rest = torch.linalg.vector_norm(flat[count * _ROW :])
    norm = float(torch.linalg.vector_norm(torch.cat([rows, rest[None]]), dtype=torch.float64))
    if _LEAST < norm < math.inf:
        return norm
    return float(torch.linalg.vector_norm(flat, dtype=torch.float64))


def blank_like(flat: torch.Tensor) -> torch.Tensor:
    """Zeros. On a CPU the kernel zeroes pages when they are first touched, which takes half as long."""
    if flat.device.type != "cpu":
        return torch.zeros_like(flat)
    return torch.from_numpy(np.zeros(len(flat), dtype=np.float32))
