"""Samples: what a client asks a sampler for, and what it gets back.

Shapes: P prompt positions, T sampled tokens, K alternatives.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from chockstone.wire.codecs.routing import Routing

Tokens = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float32]

StopReason = Literal["stop", "length"]


@dataclass(frozen=True, slots=True)
class SamplingParams:
    max_tokens: int | None = None  # None: until a stop, or the context is full
    seed: int | None = None
    stop_strings: tuple[str, ...] = ()
    stop_tokens: tuple[int, ...] = ()
    stops_at_eos: bool = True  # beside the stops above; False only for a caller who asked for no stop at all
    temperature: float = 1.0  # 0: the most likely token
    top_k: int = -1  # -1: off
    top_p: float = 1.0


@dataclass(frozen=True, slots=True)
class Targets:
    """Tokens to score at each prompt position but the first: int64 [P-1, K], -1 where none."""

    tokens: npt.NDArray[np.int64]
    is_sparse: bool  # the answer takes the same layout


@dataclass(frozen=True, slots=True)
class Constraint:
    """The text is ``prefix``, then JSON that matches ``schema``, then ``suffix``.

    With a ``mark``, which ``prefix`` begins with, the text is free up to the first mark, and prefix, JSON and suffix
    follow there. After a suffix the text is free again up to the next mark; without a suffix it ends.
    """

    schema: str  # JSON text of an object
    prefix: str = ""
    suffix: str = ""
    mark: str = ""
    is_bare: bool = False  # with a mark: a text that begins with ``{`` is JSON, too, several with ``;`` between them


@dataclass(frozen=True, slots=True)
class SampleRequest:
    prompt: Tokens  # [P], at least one
    num_samples: int
    params: SamplingParams
    prompt_logprobs: bool = False
    prompt_logprobs_last_n: int | None = None  # only these last positions, of logprobs and top-k alike
    topk_prompt_logprobs: int = 0
    topk_sample_logprobs: int = 0
    prompt_alt_tokens_k: int = 0
    targets: Targets | None = None
    constraint: Constraint | None = None  # None: any text


@dataclass(frozen=True, slots=True)
class TopK:
    """The most likely tokens, best first: [positions, K]; empty cells are token 0, logprob -99999."""

    tokens: Tokens
    logprobs: Floats


@dataclass(frozen=True, slots=True)
class SampledSequence:
    tokens: Tokens  # [T], the stop token included
    logprobs: Floats  # [T], at the sampling temperature
    stop_reason: StopReason
    topk: TopK | None = None  # [T, K]
    routing: Routing | None = None  # of the prompt and all sampled tokens but the last; clients do not get it


@dataclass(frozen=True, slots=True)
class SampleResult:
    sequences: tuple[SampledSequence, ...]
    prompt_logprobs: Floats | None = None  # [P], NaN where not computed
    topk_prompt_logprobs: TopK | None = None  # [P, K]
    target_prompt_logprobs: Floats | None = None  # [P-1, K], 0 where there was no target
    prompt_alt_tokens: TopK | None = None  # [P-1, K]
    prompt_cache_hit_tokens: int = 0
