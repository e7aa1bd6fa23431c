"""The network protocol: prefill and decode of one model, as the sampler calls them."""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt
import torch

from chockstone.sampling.adapter import Adapter
from chockstone.sampling.sequence import Sequence

LIGHT: Final = 1 << 25  # multiplications of a step; below, one thread is faster than several
_MAX_PREFILL: Final = 1 << 34  # multiplications of one prefill step on a CPU: all other requests wait for it
Prepared = Any  # Any: an adapter as a network prepared it; only that network looks inside
Prefix = Any  # Any: a prompt's KV cache as a network keeps it; only that network looks inside


@dataclass(slots=True)
class PromptChunk:
    """Consecutive tokens of one prompt, to prefill in one step: positions ``start`` and after."""

    tokens: npt.NDArray[np.int64]
    start: int
    prefix: Prefix  # None: its keys and values are not needed after this step
    adapter: Prepared
    is_scored: bool  # the caller needs logits of more than its last position

    @property
    def stop(self) -> int:
        return self.start + len(self.tokens)


@dataclass(frozen=True, slots=True)
class NewRows:
    """Samples of one prompt that join a batch, each with its first token already chosen."""

    owner: str
    sequences: Many[Sequence]
    prefix: Prefix
    adapter: Prepared


class PrefillResult(Protocol):
    """Logits of the chunks of one prefill step. Valid until the network computes again."""

    def logits(self, chunk: int, start: int, stop: int) -> torch.Tensor:
        """float32 [stop - start, V] of one chunk; ``start`` and ``stop`` are positions in its prompt."""

    def last_logits(self, chunks: Many[int]) -> torch.Tensor:
        """float32 [chunks, V] at the last position of each; chunks in rising order."""


class Network(Protocol):
    """Single-threaded; every call but ``prepare`` runs under ``torch.inference_mode``."""

    bytes_per_token: int  # of KV cache
    tokens_per_prefill: int
    scored_tokens_per_prefill: int  # at most so many of them in a chunk that is scored
    chunks_per_prefill: int
    prefix_block: int  # positions by which chunks begin, and that ``copy_block`` copies; 0: it copies none

    def prepare(self, adapter: Adapter | None) -> Prepared:
        """Raises ServerFailure for an adapter that is not this model's, or not finite."""

    def room(self, length: int) -> int:
        """Positions of KV cache that a decoding row of ``length`` reserves, slack included."""

    def new_prefix(self, length: int) -> Prefix: ...

    def copy_block(self, prefix: Prefix, start: int) -> torch.Tensor:
        """The keys and values of a block of positions. They depend on the prompt up to its end and on the weights, and
        on nothing else, to the last bit."""

    def paste_block(self, prefix: Prefix, start: int, block: torch.Tensor) -> None: ...

    def prefill(self, chunks: Many[PromptChunk]) -> PrefillResult:
        """Compute the chunks and store their keys and values in their prefixes."""

    def new_batch(self) -> Batch: ...


class Batch(Protocol):
    """The decoding rows of one sampler on one network: a row for each sample."""

    def join(self, new_rows: Many[NewRows]) -> None: ...

    def leave(self, sequences: Many[Sequence], *, tainted: bool = False) -> None:
        """``tainted``: their cache holds NaN or infinity and is zeroed before another row uses the memory."""

    def is_empty(self) -> bool: ...

    def is_light(self) -> bool:
        """Whether one thread computes the next ``decode`` faster than several."""

    def decode(self) -> tuple[Many[Sequence], torch.Tensor]:
        """Compute one token of each row that is due: these sequences, and their logits in float32 [B, V]."""


def choose_tokens_per_prefill(weights: int, device: torch.device) -> int:
    return 1024 if device.type != "cpu" else max(128, min(1024, _MAX_PREFILL // weights))
