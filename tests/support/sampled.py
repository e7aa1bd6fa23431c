"""Samples that a worker is said to have drawn: for pages that show them, without a model."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import orjson

from chockstone.backends.protocol import OnPieces, SampleCall, SampleReply
from chockstone.wire.codecs.sample_request import decode_sample
from chockstone.wire.codecs.sample_result import encode_sample_result
from chockstone.wire.codecs.samples import SampledSequence, SampleResult, TopK
from chockstone.wire.failures import RequestError


@dataclass
class DrawnSamples:
    """Answers every call with ``tokens``, or with ``error``; holds them back while ``gate`` is not set."""

    tokens: list[int]
    error: RequestError | None = None
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    calls: list[dict[str, Any]] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)

    async def sample(self, call: SampleCall, *, on_pieces: OnPieces = lambda _: None) -> SampleReply:
        """A stream gets everything at its end."""
        body = orjson.loads(call.body)
        self.calls.append(body)
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        request = decode_sample(body)
        tokens = np.array(self.tokens, np.int32)
        logprobs = np.linspace(-0.01, -6.0, len(tokens)).astype(np.float32)
        k = request.topk_sample_logprobs
        best = np.tile(np.arange(k, dtype=np.int32), (len(tokens), 1))
        others = TopK(best, np.full(best.shape, -1, np.float32))
        result = SampleResult((SampledSequence(tokens, logprobs, "length", others),))
        encoded = encode_sample_result(result, request)
        return SampleReply(content=encoded, tokens=len(tokens), prompt_tokens=request.prompt.size)

    async def cancel(self, key: str) -> None:
        self.cancelled.append(key)
