"""Flat parameters: named tensors laid end to end in one float32 tensor.

Optimizers, clipping, finiteness checks and snapshots work on the whole with one operation. Autograd
works on *leaves*: views of the same memory, whose ``grad`` is a view of whichever flat gradient is
being filled.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch

Shapes = Mapping[str, tuple[int, ...]]


class FlatParameters:
    """Zeros at first. ``flat`` may be changed in place whenever no pass is running."""

    def __init__(self, shapes: Shapes, *, device: torch.device) -> None:
        self.shapes: dict[str, tuple[int, ...]] = dict(shapes)
        self.flat = torch.zeros(sum(map(math.prod, self.shapes.values())), dtype=torch.float32, device=device)
        self.leaves = {name: view.detach().requires_grad_() for name, view in self.views(self.flat).items()}

    def views(self, flat: torch.Tensor) -> dict[str, torch.Tensor]:
        """The named tensors inside a flat one of this layout: weights, gradients or moments."""
        pieces = torch.split(flat, [math.prod(shape) for shape in self.shapes.values()])
        return {name: piece.view(shape) for (name, shape), piece in zip(self.shapes.items(), pieces, strict=True)}

    @contextmanager
    def accumulating(self, gradient: torch.Tensor | None) -> Iterator[None]:
        """Inside, backward passes add to the flat ``gradient``; with None nothing records a graph."""
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
