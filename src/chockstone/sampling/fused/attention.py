"""Attention over the KV cache: for prefill, and for rows that decode one token.

Shapes: N tokens, B rows, Q query heads, K key heads, G = Q / K, D head width, T cached positions.
"""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import dataclass
from itertools import groupby
from typing import Final

import torch
import torch.nn.functional as F  # noqa: N812  # the name everyone reads

from chockstone.sampling.fused.cache import CacheBucket, CacheShape, new_prefix
from chockstone.sampling.network import PromptChunk

_STRIDE: Final = 32  # positions by which the visible part of a bucket widens


@dataclass(slots=True)
class _ChunkRange:
    """Chunks of equal length that begin their prompts, or a single chunk that continues one."""

    chunks: list[PromptChunk]
    start: int
    stop: int
    mask: torch.Tensor | None


class PrefillAttention:
    """Several prompts in one pass: each attends to itself and to its earlier chunks."""

    def __init__(self, chunks: Many[PromptChunk], *, scaling: float, dtype: torch.dtype, device: torch.device) -> None:
        self._scaling = scaling
        self._ranges: list[_ChunkRange] = []
        row = 0
        for (start, length), alike in groupby(chunks, key=lambda chunk: (chunk.start, len(chunk.tokens))):
            for together in [list(alike)] if start == 0 else [[chunk] for chunk in alike]:
                mask = None
                if start:
                    mask = torch.full((length, start + length), -torch.inf, dtype=dtype, device=device)
                    mask = mask.triu_(start + 1)
                stop = row + length * len(together)
                self._ranges.append(_ChunkRange(together, row, stop, mask))
                row = stop

    def attend(self, layer: int, q_NQD: torch.Tensor, k_NKD: torch.Tensor, v_NKD: torch.Tensor) -> torch.Tensor:
        parts = [
            self._attend(group, layer, *(x[group.start : group.stop] for x in (q_NQD, k_NKD, v_NKD)))
            for group in self._ranges
        ]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _attend(
        self, group: _ChunkRange, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
    ) -> torch.Tensor:
        count = len(group.chunks)
        q, k, v = (x.view(count, -1, *x.shape[1:]).transpose(1, 2) for x in (q, k, v))  # [chunks, heads, N, D]
        for number, chunk in enumerate(group.chunks):
            if chunk.prefix is not None:
                chunk.prefix[layer, 0, :, chunk.start : chunk.stop] = k[number]
                chunk.prefix[layer, 1, :, chunk.start : chunk.stop] = v[number]
        if group.mask is not None:
            kept = group.chunks[0].prefix[layer, :, None, :, : group.chunks[0].stop]
            k, v = kept[0], kept[1]
        mixed = F.scaled_dot_product_attention(
            q,
            k,
            v,
            attn_mask=group.mask,
            is_causal=group.mask is None,
            scale=self._scaling,
            enable_gqa=q.shape[1] != k.shape[1],
        )
        return mixed.transpose(1, 2).reshape(group.stop - group.start, -1)


@dataclass(slots=True)
class _FirstBlocks:
    """The first blocks of several prompts, of one length."""

    length: int
    rows: list[int]  # of their position 0

    def index(self, device: torch.device) -> torch.Tensor | slice:
        """The rows of all of them, one block after another."""
        first = self.rows[0]
        if all(row == first + number * self.length for number, row in enumerate(self.rows)):
            return slice(first, first + self.length * len(self.rows))
        inside = torch.arange(self.length, device=device)
        return (torch.tensor(self.rows, device=device)[:, None] + inside).view(-1)


class BlockAttention:
    """Several prompts in one pass, each in blocks of ``block`` positions, counted from its start.

    A block's bits depend on its prompt up to its end, and neither on the chunk that it is computed in nor on the other
    prompts. ``chunks`` begin at multiples of ``block``. Rows behind those of the chunks are no prompt's.
    """

    def __init__(self, chunks: Many[PromptChunk], *, block: int, shape: CacheShape, scaling: float) -> None:
        self._scaling = scaling
        self._kept: list[tuple[torch.Tensor, PromptChunk, int]] = []  # prefix, chunk, its first row
        self._later: list[tuple[torch.Tensor, slice, int, torch.Tensor]] = []  # prefix, rows, stop, mask
        firsts: dict[int, _FirstBlocks] = {}
        masks: dict[tuple[int, int], torch.Tensor] = {}
        row = 0
        for chunk in chunks:
            prefix = chunk.prefix
            if prefix is None and chunk.stop > block:
                prefix = new_prefix(shape, chunk.stop)  # the later blocks read the earlier ones there
            if prefix is not None:
                self._kept.append((prefix, chunk, row))
            for start in range(chunk.start, chunk.stop, block):
                stop = min(start + block, chunk.stop)
                if start == 0:
                    firsts.setdefault(stop, _FirstBlocks(stop, [])).rows.append(row)
                    continue
                assert prefix is not None, "a chunk that does not begin its prompt has one"
                if (start, stop) not in masks:
                    mask = torch.full((stop - start, stop), -torch.inf, dtype=shape.dtype, device=shape.device)
                    masks[start, stop] = mask.triu_(start + 1)
                rows = slice(row + start - chunk.start, row + stop - chunk.start)
                self._later.append((prefix, rows, stop, masks[start, stop]))
            row += len(chunk.tokens)
        self._firsts = [(first.length, first.index(shape.device)) for first in firsts.values()]
        self._rows = row

    def attend(self, layer: int, q_NQD: torch.Tensor, k_NKD: torch.Tensor, v_NKD: torch.Tensor) -> torch.Tensor:
        mixed_NQD = torch.empty_like(q_NQD, memory_format=torch.contiguous_format)
        mixed_NQD[self._rows :] = 0
        kv_2KND = torch.stack((k_NKD.transpose(0, 1), v_NKD.transpose(0, 1)))
        for prefix, chunk, row in self._kept:
            prefix[layer, :, :, chunk.start : chunk.stop] = kv_2KND[:, :, row : row + len(chunk.tokens)]
        for length, index in self._firsts:
            q, k, v = (
                x[index].contiguous().view(-1, length, *x.shape[1:]).transpose(1, 2) for x in (q_NQD, k_NKD, v_NKD)
            )
            mixed_NQD[index] = self._mix(q, k, v, None).transpose(1, 2).flatten(0, 1)
        for prefix, rows, stop, mask in self._later:
            keys, values = prefix[layer, 0, None, :, :stop], prefix[layer, 1, None, :, :stop]
            mixed_NQD[rows] = self._mix(q_NQD[None, rows].transpose(1, 2), keys, values, mask)[0].transpose(0, 1)
        return mixed_NQD.view(len(mixed_NQD), -1)

    def _mix(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        """The kernel computes each prompt and head by itself, so their number changes no bit."""
        return F.scaled_dot_product_attention(
            q,
            k,
            v,
            attn_mask=mask,
            is_causal=mask is None,
            scale=self._scaling,
            enable_gqa=q.shape[1] != k.shape[1],
        )


class BucketAttention:
    """One token for each row of a bucket. ``advance`` before every pass; made anew when rows come or go."""

    def __init__(self, bucket: CacheBucket, *, query_heads: int, key_heads: int, scaling: float) -> None:
        first = bucket.layers[0]
        rows, device = len(bucket.rows), first.device
        lengths = [sequence.cached_length for sequence in bucket.rows]
        self.rows = rows
        self._size = bucket.size
        self._query_heads, self._key_heads, self._scaling = query_heads, key_heads, scaling
        self._is_quick = first.dtype == torch.float32 and device.type == "cpu"
        self._flat = [layer.view(-1, layer.shape[-1]) for layer in bucket.layers]
        self._layers = [layer[:, :rows] for layer in bucket.layers]
        self._longest = max(lengths) - 1
        self._visible = 0
        self._views: list[tuple[torch.Tensor, torch.Tensor]] = []
        heads = torch.arange(key_heads, device=device)
        self._cells_BK = torch.arange(rows, device=device)[:, None].mul(key_heads).add(heads).mul_(bucket.size)
        self._cells_BK += torch.tensor(lengths, device=device)[:, None] - 1
        half = first[0].numel() // first.shape[-1]
        self._rows = torch.stack((self._cells_BK, self._cells_BK + half), 1).view(-1)
        self._cells = self._cells_BK.view(-1)
        unseen = torch.arange(bucket.size, device=device) >= torch.tensor(lengths, device=device)[:, None]
        mask = torch.zeros(unseen.shape, dtype=first.dtype, device=device).masked_fill_(unseen, -torch.inf)
        self._mask = mask[:, None].repeat(1, key_heads, 1)  # [B, K, T]
        self._flat_mask = self._mask.view(-1)

    def advance(self) -> None:
        self._longest += 1
        self._cells.add_(1)
        self._rows.add_(1)
        self._flat_mask.index_fill_(0, self._cells, 0.0)
        if self._longest < self._visible:
            return
        self._visible = min(self._size, (self._longest // _STRIDE + 1) * _STRIDE)
        if self._is_quick:
            pairs = [(k.flatten(0, 1), v.flatten(0, 1)) for k, v in self._layers]  # views: [B * K, T, D]
            self._views = [(k[:, : self._visible].transpose(1, 2), v[:, : self._visible]) for k, v in pairs]
            self._seen = self._mask.view(-1, 1, self._size)[:, :, : self._visible]
        else:
            self._views = [(k[:, :, : self._visible], v[:, :, : self._visible]) for k, v in self._layers]
            self._seen = self._mask[:, :1, None, : self._visible]

    def attend(self, layer: int, q_NQD: torch.Tensor, k_NKD: torch.Tensor, v_NKD: torch.Tensor) -> torch.Tensor:
        fresh = torch.cat((k_NKD, v_NKD), 1)
        self._flat[layer].index_copy_(0, self._rows, fresh.view(-1, fresh.shape[-1]))
        keys, values = self._views[layer]
        if self._is_quick:  # three plain products beat the fused kernel's overhead on short rows
            q = q_NQD.reshape(-1, self._query_heads // self._key_heads, q_NQD.shape[-1])
            weights = torch.baddbmm(self._seen, q, keys, alpha=self._scaling).softmax(-1)
            return torch.bmm(weights, values).view(self.rows, -1)
        q = q_NQD.view(self.rows, self._key_heads, -1, q_NQD.shape[-1])
        mixed = F.scaled_dot_product_attention(q, keys, values, attn_mask=self._seen, scale=self._scaling)
        return mixed.reshape(self.rows, -1)


class RowsAttention:
    """Rows of several buckets, one after another."""

    def __init__(self, parts: Many[BucketAttention]) -> None:
        self._parts = parts
        self._counts = [part.rows for part in parts]

    def advance(self) -> None:
        for part in self._parts:
            part.advance()

    def attend(self, layer: int, q_NQD: torch.Tensor, k_NKD: torch.Tensor, v_NKD: torch.Tensor) -> torch.Tensor:
        splits = zip(*(torch.split(x, self._counts) for x in (q_NQD, k_NKD, v_NKD)), strict=True)
        return torch.cat([part.attend(layer, *split) for part, split in zip(self._parts, splits, strict=True)])
