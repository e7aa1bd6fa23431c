"""Networks: what the sampler needs of a model that computes, whichever way it does."""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt
import torch

from chockstone.sampling.adapter import Adapter
from chockstone.sampling.sequence import Sequence

LIGHT: Final = 1 << 25  # multiplications of a step below which more threads than one are in each other's way
_HEAVY: Final = 1 << 34  # multiplications a reading may take on a CPU, where it keeps everyone else waiting
Prepared = Any  # Any: an adapter as a network made it ready; only that network looks inside
Prefix = Any  # Any: a prompt's keys and values as a network keeps them; only that network looks inside


@dataclass(slots=True)
class Piece:
    """A stretch of one prompt to read next: positions ``start`` and after."""

    tokens: npt.NDArray[np.int64]
    start: int
    prefix: Prefix  # None: nothing of it will be needed again
    adapter: Prepared
    is_scored: bool  # logits of more than its last position will be asked for

    @property
    def stop(self) -> int:
        return self.start + len(self.tokens)


@dataclass(frozen=True, slots=True)
class Newcomers:
    """Samples of one prompt that begin to decode, each with its first token already picked."""

    owner: str
    sequences: Many[Sequence]
    prefix: Prefix
    adapter: Prepared


class PromptReading(Protocol):
    """What came of reading some pieces. Good until the network computes again."""

    def logits(self, piece: int, start: int, stop: int) -> torch.Tensor:
        """float32 [stop - start, V] of one piece, by positions in its prompt."""

    def last_logits(self, pieces: Many[int]) -> torch.Tensor:
        """float32 [pieces, V] at the last position of each; pieces in rising order."""


class Network(Protocol):
    """Single-threaded; every call but ``prepare`` runs under ``torch.inference_mode``."""

    bytes_per_token: int  # of cache
    tokens_per_reading: int
    scored_per_reading: int  # of those, in a piece that is scored
    pieces_per_reading: int

    def prepare(self, adapter: Adapter | None) -> Prepared:
        """Raises ServerFailure for an adapter that is not this model's, or not finite."""

    def room(self, length: int) -> int:
        """Positions of cache a decoding row of ``length`` takes, slack included."""

    def new_prefix(self, length: int) -> Prefix: ...

    def read(self, pieces: Many[Piece]) -> PromptReading:
        """Compute the pieces and keep their keys and values in their prefixes."""

    def new_batch(self) -> Batch: ...


class Batch(Protocol):
    """The samples that decode, of one sampler on one network."""

    def join(self, newcomers: Many[Newcomers]) -> None: ...

    def leave(self, sequences: Many[Sequence], *, tainted: bool = False) -> None:
        """``tainted``: their numbers are not finite and must not be read again by whoever takes the place."""

    def is_empty(self) -> bool: ...

    def is_light(self) -> bool:
        """Whether the next ``decode`` is too little work for several threads."""

    def decode(self) -> tuple[Many[Sequence], torch.Tensor]:
        """One token further: the sequences that moved, and their logits in float32 [B, V]."""


def count_tokens_per_reading(weights: int, device: torch.device) -> int:
    return 1024 if device.type != "cpu" else max(128, min(1024, _HEAVY // weights))
