"""Pieces: what of one tensor this rank has, said by hand where no DTensor says it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True, eq=False)
class Pieces:
    """This rank's ranges of a tensor that the ranks have between them.

        Pieces((10, 4), torch.float32, [(0, first), (32, second)])

    Each piece is a one-dimensional tensor of ``dtype``, and the number is where its first element stands among all
    elements of the whole, counted row by row. Pieces stand in rising order and do not overlap; those of all ranks
    together are the whole, each element once. A rank may have none. As part of a state they are saved, as part of a
    target they are filled in place.
    """

    shape: tuple[int, ...]  # of the whole
    dtype: torch.dtype
    pieces: Sequence[tuple[int, torch.Tensor]]

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", tuple(map(int, self.shape)))
        object.__setattr__(self, "pieces", tuple((int(first), tensor) for first, tensor in self.pieces))
        position, end = 0, math.prod(self.shape)
        for first, tensor in self.pieces:
            if tensor.dim() != 1 or tensor.dtype != self.dtype:
                raise ValueError(
                    f"a piece of {self.dtype} is a tensor of {tensor.dtype} with {tensor.dim()} dimensions; "
                    "give each as one dimension of the dtype of the whole"
                )
            if not position <= first <= first + tensor.numel() <= end:
                raise ValueError(
                    f"elements {first} to {first + tensor.numel()} of {end} are out of order, overlap the piece "
                    f"before, which ends at {position}, or are not in the whole of shape {list(self.shape)}"
                )
            position = first + tensor.numel()
