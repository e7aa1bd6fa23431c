"""Deferred tensors: float32 tensors of an archive whose numbers are computed while the archive is written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class DeferredTensor:
    """Readers of the archive get a torch tensor; its writer needs no torch, and has few tensors in memory at a time.

    ``make`` is called one or more times, from several threads, and must return the same numbers each time.
    """

    shape: tuple[int, ...]
    make: Callable[[], npt.NDArray[np.float32]]

    def numbers(self) -> npt.NDArray[np.float32]:
        made = self.make()
        if made.shape != self.shape or made.dtype != np.float32:
            raise ValueError(f"a tensor of shape {self.shape} was announced, and {made.dtype} {made.shape} was made")
        return made
