"""The fused network of Llama-like models: prefill of many prompts in one pass, decode of all rows in one batch."""

from __future__ import annotations

from collections.abc import Sequence as Many
from contextlib import nullcontext
from typing import Final

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812  # the name everyone reads

from chockstone.sampling.adapter import Adapter, AdapterCache
from chockstone.sampling.experts.routers import RoutingRecorder
from chockstone.sampling.fused.adapter import FusedAdapter, fuse_adapter, fuse_base
from chockstone.sampling.fused.attention import BlockAttention, PrefillAttention
from chockstone.sampling.fused.batch import FusedBatch
from chockstone.sampling.fused.cache import CacheShape, bucket_size, new_prefix
from chockstone.sampling.fused.decoder import Decoder
from chockstone.sampling.fused.multi_lora import MultiLoraMatmul
from chockstone.sampling.fused.routing import FusedRouting
from chockstone.sampling.fused.weights import ExpertBlock, FusedWeights
from chockstone.sampling.network import PromptChunk, choose_tokens_per_prefill
from chockstone.sampling.products.row_tiles import TILE, RowTiles
from chockstone.sampling.quantised.weight import dense

_BLOCK: Final = 64  # positions


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
        self._tiles = None if experts else _find_tiles(weights, self.tokens_per_prefill)
        self.prefix_block = 0 if self._tiles is None else _BLOCK

    def prepare(self, adapter: Adapter | None) -> FusedAdapter:
        if adapter is None:
            return self._base
        return self._prepared.get(adapter)

    def room(self, length: int) -> int:
        return bucket_size(length)

    def new_prefix(self, length: int) -> torch.Tensor:
        return new_prefix(self._shape, length)

    def copy_block(self, prefix: torch.Tensor, start: int) -> torch.Tensor:
        return prefix[:, :, :, start : start + _BLOCK].clone(memory_format=torch.contiguous_format)

    def paste_block(self, prefix: torch.Tensor, start: int, block: torch.Tensor) -> None:
        prefix[:, :, :, start : start + _BLOCK] = block

    def prefill(self, chunks: Many[PromptChunk]) -> FusedPrefill:
        device = self._shape.device
        order = sorted(
            range(len(chunks)), key=lambda i: (id(chunks[i].adapter), chunks[i].start, len(chunks[i].tokens))
        )
        ordered = [chunks[i] for i in order]
        attention = self._attention(ordered)
        tokens = torch.from_numpy(np.concatenate([chunk.tokens for chunk in ordered])).to(device)
        positions = np.concatenate([np.arange(chunk.start, chunk.stop) for chunk in ordered])
        self._decoder.rotary.reach(max(chunk.stop for chunk in ordered))
        ranges = [(chunk.adapter, len(chunk.tokens)) for chunk in ordered]
        if self._tiles is not None and (missing := -len(positions) % TILE):
            tokens = F.pad(tokens, (0, missing))
            positions = np.pad(positions, (0, missing))
            ranges.append((ordered[-1].adapter, missing))
        matmul = MultiLoraMatmul(self._weights, ranges, self._tiles)
        with nullcontext() if self._routing is None else self._routing.recording():
            hidden = self._decoder.hidden(tokens, torch.from_numpy(positions).to(device), matmul, attention)
        if self._routing is not None:
            self._routing.note_prompts(ordered)
        return FusedPrefill(self._decoder, chunks, order, hidden, self._tiles)

    def _attention(self, chunks: Many[PromptChunk]) -> BlockAttention | PrefillAttention:
        shape, scaling = self._shape, self._weights.scaling
        if self._tiles is None:
            return PrefillAttention(chunks, scaling=scaling, dtype=shape.dtype, device=shape.device)
        return BlockAttention(chunks, block=_BLOCK, shape=shape, scaling=scaling)

    def new_batch(self) -> FusedBatch:
        return FusedBatch(self._decoder, self._shape, self._routing)


class FusedPrefill:
    def __init__(
        self,
        decoder: Decoder,
        chunks: Many[PromptChunk],
        order: list[int],
        hidden: torch.Tensor,
        tiles: RowTiles | None = None,
    ) -> None:
        self._decoder = decoder
        self._tiles = tiles
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
        matmul = MultiLoraMatmul(self._decoder.weights, [(self._chunks[chunk].adapter, stop - start)], self._tiles)
        return self._decoder.logits(self._hidden[offset + start : offset + stop], matmul)

    def last_logits(self, chunks: Many[int]) -> torch.Tensor:
        ranked = sorted(chunks, key=lambda number: self._rank[number])
        ends = [self._starts[number] + len(self._chunks[number].tokens) - 1 for number in ranked]
        ranges = [(self._chunks[number].adapter, 1) for number in ranked]
        matmul = MultiLoraMatmul(self._decoder.weights, ranges, self._tiles)
        rows = self._hidden[torch.tensor(ends, device=self._hidden.device)]
        logits = self._decoder.logits(rows, matmul)
        if list(chunks) == ranked:
            return logits
        row_of = {number: row for row, number in enumerate(ranked)}
        return logits[torch.tensor([row_of[number] for number in chunks], device=logits.device)]


def _find_tiles(weights: FusedWeights, most_rows: int) -> RowTiles | None:
    """None where prompts are computed without regard to the rows beside them: on GPUs, where it is untested, and
    where some product of the model gives a row other bits at another place of a tile."""
    if weights.embedding.device.type != "cpu":
        return None
    tiles = RowTiles(most_rows)
    shapes = {matrix.weight.shape: matrix.weight for matrix in weights.matrices}
    return tiles if all(tiles.is_exact(dense(weight).t()) for weight in shapes.values()) else None
