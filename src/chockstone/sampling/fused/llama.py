"""The fused network: Llama-like models with our own decoder, all rows and adapters in one batch."""

from __future__ import annotations

from collections.abc import Sequence as Many

import numpy as np
import torch

from chockstone.sampling.adapter import Adapter
from chockstone.sampling.adapter_cache import AdapterCache
from chockstone.sampling.fused.adapter import FusedAdapter, fuse_adapter, fuse_nothing
from chockstone.sampling.fused.attention import ReadingAttention
from chockstone.sampling.fused.batch import FusedBatch
from chockstone.sampling.fused.cache import CacheShape, bucket_size, new_prefix
from chockstone.sampling.fused.decoder import Decoder
from chockstone.sampling.fused.multi_lora import MultiLoraMatmul
from chockstone.sampling.fused.weights import FusedWeights
from chockstone.sampling.network import Piece, count_tokens_per_reading


class FusedLlama:
    pieces_per_reading = 128

    def __init__(self, fused_weights: FusedWeights) -> None:
        embedding = fused_weights.embedding
        self._shape = CacheShape(
            layers=len(fused_weights.layers),
            key_heads=fused_weights.key_heads,
            head_width=fused_weights.head_width,
            dtype=embedding.dtype,
            device=embedding.device,
        )
        self.bytes_per_token = self._shape.bytes_per_token
        self._fused_weights = fused_weights
        self.tokens_per_reading = count_tokens_per_reading(fused_weights.size, embedding.device)
        self.scored_per_reading = self.tokens_per_reading  # logits are computed when they are asked for
        self._decoder = Decoder(fused_weights)
        self._base = fuse_nothing(fused_weights)
        self._prepared = AdapterCache(lambda adapter: fuse_adapter(adapter, fused_weights))

    def prepare(self, adapter: Adapter | None) -> FusedAdapter:
        if adapter is None:
            return self._base
        return self._prepared.get(adapter)

    def room(self, length: int) -> int:
        return bucket_size(length)

    def new_prefix(self, length: int) -> torch.Tensor:
        return new_prefix(self._shape, length)

    def read(self, pieces: Many[Piece]) -> FusedReading:
        device = self._shape.device
        order = sorted(
            range(len(pieces)), key=lambda i: (id(pieces[i].adapter), pieces[i].start, len(pieces[i].tokens))
        )
        ordered = [pieces[i] for i in order]
        attention = ReadingAttention(
            ordered, scaling=self._fused_weights.scaling, dtype=self._shape.dtype, device=device
        )
        tokens = torch.from_numpy(np.concatenate([piece.tokens for piece in ordered])).to(device)
        positions = np.concatenate([np.arange(piece.start, piece.stop) for piece in ordered])
        self._decoder.rotary.reach(max(piece.stop for piece in ordered))
        matmul = MultiLoraMatmul(self._fused_weights, [(piece.adapter, len(piece.tokens)) for piece in ordered])
        hidden = self._decoder.hidden(tokens, torch.from_numpy(positions).to(device), matmul, attention)
        return FusedReading(self._decoder, pieces, order, hidden)

    def new_batch(self) -> FusedBatch:
        return FusedBatch(self._decoder, self._shape)


class FusedReading:
    def __init__(self, decoder: Decoder, pieces: Many[Piece], order: list[int], hidden: torch.Tensor) -> None:
        self._decoder = decoder
        self._pieces = pieces
        self._hidden = hidden
        self._starts = [0] * len(pieces)
        self._rank = [0] * len(pieces)
        place = 0
        for rank, number in enumerate(order):
            self._starts[number] = place
            self._rank[number] = rank
            place += len(pieces[number].tokens)

    def logits(self, piece: int, start: int, stop: int) -> torch.Tensor:
        offset = self._starts[piece] - self._pieces[piece].start
        matmul = MultiLoraMatmul(self._decoder.fused_weights, [(self._pieces[piece].adapter, stop - start)])
        return self._decoder.logits(self._hidden[offset + start : offset + stop], matmul)

    def last_logits(self, pieces: Many[int]) -> torch.Tensor:
        ranked = sorted(pieces, key=lambda number: self._rank[number])
        ends = [self._starts[number] + len(self._pieces[number].tokens) - 1 for number in ranked]
        matmul = MultiLoraMatmul(self._decoder.fused_weights, [(self._pieces[number].adapter, 1) for number in ranked])
        rows = self._hidden[torch.tensor(ends, device=self._hidden.device)]
        logits = self._decoder.logits(rows, matmul)
        if list(pieces) == ranked:
            return logits
        places = {number: place for place, number in enumerate(ranked)}
        return logits[torch.tensor([places[number] for number in pieces], device=logits.device)]
