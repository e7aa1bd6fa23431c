"""Networks: the protocol between the sampler and a model, fused or generic."""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt
import torch

from chockstone.sampling.adapter import Adapter
from chockstone.sampling.sequence import Sequence

LIGHT: Final = 1 << 25  # multiplications of a step up to which one thread is faster than several
_HEAVY: Final = 1 << 34  # maximum multiplications of one reading on a CPU, during which others wait
Prepared = Any  # Any: a prepared adapter; opaque outside its network
Prefix = Any  # Any: keys and values of a prompt; opaque outside its network


@dataclass(slots=True)
class Piece:
    """A piece of a prompt to read next: positions ``start`` and after."""

    tokens: npt.NDArray[np.int64]
    start: int
    prefix: Prefix  # None: its keys and values are not kept
    adapter: Prepared
    is_scored: bool  # logits of more than the last position are needed

    @property
    def stop(self) -> int:
        return self.start + len(self.tokens)


@dataclass(frozen=True, slots=True)
class Newcomers:
    """Samples of one prompt that begin to decode. The first token of each is picked already."""

    owner: str
    sequences: Many[Sequence]
    prefix: Prefix
    adapter: Prepared


class PromptReading(Protocol):
    """The result of reading some pieces. Valid until the network computes again."""

    def logits(self, piece: int, start: int, stop: int) -> torch.Tensor:
        """float32 [stop - start, V] of one piece, by positions in its prompt."""

    def last_logits(self, pieces: Many[int]) -> torch.Tensor:
        """float32 [pieces, V] at the last position of each; pieces in rising order."""


class Network(Protocol):
    """Single-threaded; every call but ``prepare`` runs under ``torch.inference_mode``."""

    bytes_per_token: int  # of cache
    tokens_per_reading: int
    scored_per_reading: int  # the same, for a piece that is scored
    pieces_per_reading: int

    def prepare(self, adapter: Adapter | None) -> Prepared:
        """Prepare an adapter. Raises ServerFailure if it does not fit the model or is not finite."""

    def room(self, length: int) -> int:
        """Positions of cache that a decoding row of ``length`` takes, including slack."""

    def new_prefix(self, length: int) -> Prefix: ...

    def read(self, pieces: Many[Piece]) -> PromptReading:
        """Compute the pieces and keep their keys and values in their prefixes."""

    def new_batch(self) -> Batch: ...


class Batch(Protocol):
    """The samples that decode, of one sampler on one network."""

    def join(self, newcomers: Many[Newcomers]) -> None: ...

    def leave(self, sequences: Many[Sequence], *, tainted: bool = False) -> None:
        """Remove samples. ``tainted``: their cache is not finite and must be cleared before others use it."""

    def is_empty(self) -> bool: ...

    def is_light(self) -> bool:
        """Whether the next ``decode`` is too little work for several threads."""

    def decode(self) -> tuple[Many[Sequence], torch.Tensor]:
        """Decode one token. Returns the sequences that were decoded, and their logits in float32 [B, V]."""


def count_tokens_per_reading(weights: int, device: torch.device) -> int:
    return 1024 if device.type != "cpu" else max(128, min(1024, _HEAVY // weights))
