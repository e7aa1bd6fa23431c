"""A sequence: one sample while it is generated, and the random numbers that choose its tokens."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from chockstone.sampling.constrained.guide import Guide
from chockstone.sampling.stops import Stops
from chockstone.wire.codecs.routing import Routing
from chockstone.wire.codecs.samples import Floats, SampledSequence, SamplingParams, StopReason, Tokens, TopK


class Sequence:
    """Sample ``index`` of a request. Its tokens depend on (seed, index) and the model, never on other rows."""

    __slots__ = (
        "_topk",
        "guide",
        "index",
        "logprobs",
        "max_tokens",
        "params",
        "prompt_length",
        "routing",
        "stop_reason",
        "stops",
        "tokens",
        "uniforms",
    )

    def __init__(
        self,
        *,
        index: int,
        seed: int,
        params: SamplingParams,
        prompt_length: int,
        max_tokens: int,
        stops: Stops,
        guide: Guide | None = None,
    ) -> None:
        """``guide``: says which tokens may come next; None: any."""
        self.index = index
        self.params = params
        self.prompt_length = prompt_length
        self.max_tokens = max_tokens
        self.stops = stops
        self.guide = guide
        self.tokens: list[int] = []
        self.logprobs: list[float] = []
        self.stop_reason: StopReason | None = None
        self.uniforms = draw_uniforms(seed, index)
        self.routing: list[Routing] = []  # of the tokens that the model has read, if it is recorded
        self._topk: list[tuple[Tokens, Floats]] = []

    @property
    def cached_length(self) -> int:
        """Positions of a decoding row in the KV cache: all but the last token's, which is computed next."""
        return self.prompt_length + len(self.tokens) - 1

    def accept(self, token: int, logprob: float) -> None:
        self.tokens.append(token)
        self.logprobs.append(logprob)
        if self.stops.end(self.tokens) or (self.guide is not None and self.guide.accept(token)):
            self.stop_reason = "stop"
        elif len(self.tokens) >= self.max_tokens:
            self.stop_reason = "length"

    def accept_topk(self, tokens: Tokens, logprobs: Floats) -> None:
        self._topk.append((tokens, logprobs))

    def result(self) -> SampledSequence:
        assert self.stop_reason is not None
        topk = None
        if self._topk:
            topk = TopK(np.stack([row[0] for row in self._topk]), np.stack([row[1] for row in self._topk]))
        return SampledSequence(
            tokens=np.array(self.tokens, dtype=np.int32),
            logprobs=np.array(self.logprobs, dtype=np.float32),
            stop_reason=self.stop_reason,
            topk=topk,
            routing=None if not self.routing else np.concatenate(self.routing, dtype=np.uint16),
        )


def draw_uniforms(seed: int, index: int) -> Iterator[float]:
    """Numbers in [0, 1), the same for the same seed and sample on every machine."""
    random = np.random.Generator(np.random.Philox(np.random.SeedSequence((seed % 2**64, index))))
    while True:
        yield from random.random(32).tolist()
