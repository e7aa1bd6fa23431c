"""The fused batch: one decode step for all rows of a model, with any adapters and lengths."""

from __future__ import annotations

from collections.abc import Sequence as Many
from contextlib import nullcontext

import torch

from chockstone.sampling.fused.adapter import FusedAdapter
from chockstone.sampling.fused.attention import BucketAttention, RowsAttention
from chockstone.sampling.fused.cache import CachedRows, CacheShape
from chockstone.sampling.fused.decoder import Decoder
from chockstone.sampling.fused.multi_lora import MultiLoraMatmul
from chockstone.sampling.fused.routing import FusedRouting
from chockstone.sampling.fused.weights import FusedWeights
from chockstone.sampling.network import LIGHT, NewRows
from chockstone.sampling.sequence import Sequence


class FusedBatch:
    def __init__(self, decoder: Decoder, shape: CacheShape, routing: FusedRouting | None = None) -> None:
        """``routing`` records which experts are chosen."""
        self._decoder = decoder
        self._routing = routing
        self._size = decoder.weights.size
        self._rows = CachedRows(shape)
        self._adapters: dict[Sequence, FusedAdapter] = {}
        self._round: _Round | None = None

    def join(self, new_rows: Many[NewRows]) -> None:
        self._rows.add(new_rows)
        for some in new_rows:
            for sequence in some.sequences:
                self._adapters[sequence] = some.adapter
        if self._routing is not None:
            self._routing.note_started(new_rows)
        self._round = None

    def leave(self, sequences: Many[Sequence], *, tainted: bool = False) -> None:
        self._rows.remove(sequences, tainted=tainted)
        for sequence in sequences:
            self._adapters.pop(sequence, None)
        self._round = None

    def is_empty(self) -> bool:
        return not self._adapters

    def is_light(self) -> bool:
        return len(self._adapters) * self._size <= LIGHT

    def decode(self) -> tuple[list[Sequence], torch.Tensor]:
        if self._round is None or self._round.steps_left == 0:
            self._rows.promote()
            self._round = _Round(self._decoder.weights, self._rows, self._adapters)
            self._decoder.rotary.reach(self._round.reach)
        now = self._round
        now.advance()
        with nullcontext() if self._routing is None else self._routing.recording():
            hidden = self._decoder.hidden(now.last_tokens(), now.positions, now.matmul, now.attention, order=now.order)
        if self._routing is not None:
            self._routing.note_decoded(now.sequences)
        return now.sequences, self._decoder.logits(hidden, now.matmul)


class _Round:
    """The rows that decode together, ordered by adapter; valid until a row joins, leaves or fills its bucket."""

    def __init__(self, weights: FusedWeights, rows: CachedRows, adapters: dict[Sequence, FusedAdapter]) -> None:
        device = weights.embedding.device
        buckets = rows.buckets
        stored = [sequence for bucket in buckets for sequence in bucket.rows]
        by_adapter = sorted(range(len(stored)), key=lambda i: id(adapters[stored[i]]))
        self.sequences = [stored[i] for i in by_adapter]
        self.matmul = MultiLoraMatmul(
            weights, [(adapters[sequence], 1) for sequence in self.sequences], is_decoding=True
        )
        self.order: tuple[torch.Tensor, torch.Tensor] | None = None
        if by_adapter != list(range(len(stored))):
            there = torch.tensor(by_adapter, device=device)
            self.order = (there.argsort(), there)
        sizes = {"query_heads": weights.query_heads, "key_heads": weights.key_heads}
        parts = [BucketAttention(bucket, scaling=weights.scaling, **sizes) for bucket in buckets]
        self.attention = parts[0] if len(parts) == 1 else RowsAttention(parts)
        self.positions = torch.tensor([sequence.cached_length - 1 for sequence in stored], device=device)
        self.steps_left = min(bucket.size - max(row.cached_length for row in bucket.rows) for bucket in buckets)
        self.reach = max(bucket.size for bucket in buckets)
        self._device = device

    def advance(self) -> None:
        self.steps_left -= 1
        self.positions.add_(1)
        self.attention.advance()

    def last_tokens(self) -> torch.Tensor:
        return torch.tensor([sequence.tokens[-1] for sequence in self.sequences], device=self._device)
