"""Packed matrices: copies of a model's matrices in a layout of oneDNN, for decoding of few rows on a CPU.

A product of a few rows in MKL first copies the matrix into another layout, and that takes longer than to multiply.
The copies take as much memory as the matrices, so they are made only within a limit, each when it is first needed.
"""

from __future__ import annotations

from collections.abc import Sequence as Many
from typing import Final

import torch

from chockstone.sampling.quantised.weight import FrozenWeight

FEWEST_ROWS: Final = 2  # one row reads the matrix once, in any layout
MOST_ROWS: Final = 32
_SMALLEST: Final = 1 << 18  # elements; below, a call of oneDNN takes longer than the product


class PackedMatrices:
    def __init__(self, weights: Many[FrozenWeight], *, limit_bytes: int) -> None:
        """``weights`` must not change later. Nothing is packed if the copies would take more than ``limit_bytes``."""
        chosen = {number: weight for number, weight in enumerate(weights) if _can_be_packed(weight)}
        is_within = sum(weight.nbytes for weight in chosen.values()) <= limit_bytes
        has_kernels = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self._weights = chosen if is_within and has_kernels else {}
        self._packed: dict[int, torch.Tensor] = {}

    @property
    def size_bytes(self) -> int:
        """Of the copies made so far."""
        return sum(self._weights[number].nbytes for number in self._packed)

    def has(self, number: int, weight: FrozenWeight) -> bool:
        """Whether this is the matrix that is packed, and not one with an adapter merged into it."""
        return self._weights.get(number) is weight

    def product(self, number: int, x: torch.Tensor) -> torch.Tensor:
        """``x @ weight.T``, contiguous."""
        if (packed := self._packed.get(number)) is None:
            packed = torch.ops.mkldnn._reorder_linear_weight(self._weights[number], MOST_ROWS)
            self._packed[number] = packed
        y: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, packed, None, "none", [], "")
        return y


def _can_be_packed(weight: FrozenWeight) -> bool:
    if not isinstance(weight, torch.Tensor) or weight.dtype != torch.float32 or weight.device.type != "cpu":
        return False
    return weight.ndim == 2 and weight.numel() > _SMALLEST
