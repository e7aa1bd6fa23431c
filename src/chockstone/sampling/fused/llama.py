"""The fused network of Llama-like models: prefill of many prompts in one pass, decode of all rows in one batch."""

from __future__ import annotations

from collections.abc import Sequence as Many
from contextlib import nullcontext

import numpy as np
import torch

from chockstone.sampling.adapter import Adapter, AdapterCache
from chockstone.sampling.experts.routers import RoutingRecorder
from chockstone.sampling.fused.adapter import FusedAdapter, fuse_adapter, fuse_base
from chockstone.sampling.fused.attention import PrefillAttention
from chockstone.sampling.fused.batch import FusedBatch
from chockstone.sampling.fused.cache import CacheShape, bucket_size, new_prefix
from chockstone.sampling.fused.decoder import Decoder
from chockstone.sampling.fused.multi_lora import MultiLoraMatmul
from chockstone.sampling.fused.routing import FusedRouting
from chockstone.sampling.fused.weights import ExpertBlock, FusedWeights
from chockstone.sampling.network import PromptChunk, choose_tokens_per_prefill


class FusedLlama:
    chunks_per_prefill = 128

    def __init__(self, weights: FusedWeights, *, records_routing: bool = False) -> None:
        """``records_routing``: sequences keep which experts were chosen for their tokens."""
        embedding = weights.embedding
        self._shape = CacheShape(
            layers=len(weights.layers),
            key_heads=weights.key_heads,
            head_width=weights.head_width,
            dtype=embedding.dtype,
            device=embedding.device,
        )
        self.bytes_per_token = self._shape.bytes_per_token
        self._weights = weights
        self.tokens_per_prefill = choose_tokens_per_prefill(weights.size, embedding.device)
        self.scored_tokens_per_prefill = self.tokens_per_prefill  # logits are computed on request
        self._decoder = Decoder(weights)
        self._base = fuse_base(weights)
        experts = [layer.mlp.experts for layer in weights.layers if isinstance(layer.mlp, ExpertBlock)]
        self._routing = FusedRouting(RoutingRecorder(experts)) if records_routing and experts else None
        self._prepared = AdapterCache(lambda adapter: fuse_adapter(adapter, weights))

    def prepare(self, adapter: Adapter | None) -> FusedAdapter:
        if adapter is None:
            return self._base
        return self._prepared.get(adapter)

    def room(self, length: int) -> int:
        return bucket_size(length)

    def new_prefix(self, length: int) -> torch.Tensor:
        return new_prefix(self._shape, length)

    def prefill(self, chunks: Many[PromptChunk]) -> FusedPrefill:
        device = self._shape.device
        order = sorted(
            range(len(chunks)), key=lambda i: (id(chunks[i].adapter), chunks[i].start, len(chunks[i].tokens))
        )
        ordered = [chunks[i] for i in order]
        attention = PrefillAttention(ordered, scaling=self._weights.scaling, dtype=self._shape.dtype, device=device)
        tokens = torch.from_numpy(np.concatenate([chunk.tokens for chunk in ordered])).to(device)
        positions = np.concatenate([np.arange(chunk.start, chunk.stop) for chunk in ordered])
        self._decoder.rotary.reach(max(chunk.stop for chunk in ordered))
        matmul = MultiLoraMatmul(self._weights, [(chunk.adapter, len(chunk.tokens)) for chunk in ordered])
        with nullcontext() if self._routing is None else self._routing.recording():
            hidden = self._decoder.hidden(tokens, torch.from_numpy(positions).to(device), matmul, attention)
        if self._routing is not None:
            self._routing.note_prompts(ordered)
        return FusedPrefill(self._decoder, chunks, order, hidden)

    def new_batch(self) -> FusedBatch:
        return FusedBatch(self._decoder, self._shape, self._routing)


class FusedPrefill:
    def __init__(self, decoder: Decoder, chunks: Many[PromptChunk], order: list[int], hidden: torch.Tensor) -> None:
        self._decoder = decoder
        self._chunks = chunks
        self._hidden = hidden
        self._starts = [0] * len(chunks)
        self._rank = [0] * len(chunks)
        row = 0
        for rank, number in enumerate(order):
            self._starts[number] = row
            self._rank[number] = rank
            row += len(chunks[number].tokens)

    def logits(self, chunk: int, start: int, stop: int) -> torch.Tensor:
        offset = self._starts[chunk] - self._chunks[chunk].start
        matmul = MultiLoraMatmul(self._decoder.weights, [(self._chunks[chunk].adapter, stop - start)])
        return self._decoder.logits(self._hidden[offset + start : offset + stop], matmul)

    def last_logits(self, chunks: Many[int]) -> torch.Tensor:
        ranked = sorted(chunks, key=lambda number: self._rank[number])
        ends = [self._starts[number] + len(self._chunks[number].tokens) - 1 for number in ranked]
        matmul = MultiLoraMatmul(self._decoder.weights, [(self._chunks[number].adapter, 1) for number in ranked])
        rows = self._hidden[torch.tensor(ends, device=self._hidden.device)]
        logits = self._decoder.logits(rows, matmul)
        if list(chunks) == ranked:
            return logits
        row_of = {number: row for row, number in enumerate(ranked)}
        return logits[torch.tensor([row_of[number] for number in chunks], device=logits.device)]
