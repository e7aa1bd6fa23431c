"""Passes: a request over a batch of datums, of N positions and K targets each (K is absent if targets are [N])."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from chockstone.wire.codecs.routing import Routing

Array = npt.NDArray[np.float32] | npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Datum:
    tokens: npt.NDArray[np.int32]  # [N], the model's input
    inputs: Mapping[str, Array]  # by name: dense, float32 or int64, finite; CSR is already spread out


@dataclass(frozen=True, slots=True)
class Pass:
    """One request as the worker sees it. Row i of an input scores the token after position i."""

    run_id: str
    seq_id: int
    data: tuple[Datum, ...]
    loss: str
    options: Mapping[str, float | str]
    forward_only: bool
    routing: tuple[Routing | None, ...] = ()  # of each datum: the experts to compute with; empty: the model chooses


@dataclass(frozen=True, slots=True)
class PassResult:
    logprobs: tuple[npt.NDArray[np.float32], ...]  # per datum, in order, shaped like its target_tokens
    metrics: Mapping[str, float]  # "name:reduction"; always has "loss:sum"
    elementwise_loss: tuple[npt.NDArray[np.float32], ...] = ()  # shaped like logprobs; empty: not defined, or not asked
