"""Rotary angles: a table of cosines and sines by position, computed by the model's own module.

Shapes: N positions, D head width.
"""

from __future__ import annotations

import torch
from torch import nn


class RotaryTable:
    """Grows to the largest position that was needed, so that a long context costs nothing until it is used."""

    def __init__(self, rotary: nn.Module, like: torch.Tensor) -> None:
        self._rotary = rotary
        self._like = like
        self._table_N2D = like.new_empty(0, 2, 0)

    def reach(self, length: int) -> None:
        """Extend the table to all positions below ``length``."""
        if len(self._table_N2D) >= length:
            return
        size = max(1024, 1 << (length - 1).bit_length())
        positions = torch.arange(size, device=self._like.device)[None]
        cos, sin = self._rotary(self._like, positions)
        half = cos.shape[-1] // 2
        signed = torch.cat((-sin[0, :, :half], sin[0, :, half:]), -1)  # so that rotate_half is a plain roll
        self._table_N2D = torch.stack((cos[0], signed), 1)

    def look_up(self, positions_N: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosines and signed sines, each [N, 1, D]."""
        found_N2D = self._table_N2D.index_select(0, positions_N)
        return found_N2D[:, :1], found_N2D[:, 1:]
