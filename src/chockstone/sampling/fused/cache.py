"""The KV cache: of prompts, and of decoding rows in buckets by length.

A bucket holds rows of one capacity, packed from row 0, so that a batch is a slice and never a copy. A row that
outgrows its bucket moves to the next larger one; when a row leaves, the last row takes its index.

Shapes: L layers, R rows allocated, K key heads, T positions, D head width, P prompt positions.
"""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import dataclass
from itertools import groupby
from typing import Final

import torch

from chockstone.sampling.network import NewRows
from chockstone.sampling.sequence import Sequence

_SHORTEST: Final = 128  # positions of the smallest bucket
_ALIGNED: Final = 16  # positions
_SLACK: Final = 4  # a bucket grows by a quarter beyond what it needs, so that new rows seldom need a copy


@dataclass(frozen=True, slots=True)
class CacheShape:
    layers: int
    key_heads: int
    head_width: int
    dtype: torch.dtype
    device: torch.device

    @property
    def bytes_per_token(self) -> int:
        return 2 * self.layers * self.key_heads * self.head_width * self.dtype.itemsize


def bucket_size(length: int) -> int:
    return max(_SHORTEST, 1 << (length - 1).bit_length())


def new_prefix(shape: CacheShape, length: int) -> torch.Tensor:
    """A prompt's own keys and values: [L, 2, K, P, D]. The memory of each head begins at a multiple of 16 positions,
    so that kernels meet the same alignment for every length."""
    size = (shape.layers, 2, shape.key_heads, -(-length // _ALIGNED) * _ALIGNED, shape.head_width)
    return torch.empty(size, dtype=shape.dtype, device=shape.device)[:, :, :, :length]


class CacheBucket:
    """Rows of up to ``size`` positions. Values beyond a row's length must be finite: they are read and masked."""

    def __init__(self, shape: CacheShape, size: int) -> None:
        self.size = size
        self.rows: list[Sequence] = []
        self.layers: list[torch.Tensor] = []  # each [2, R, K, T, D]
        self._shape = shape

    @property
    def allocated_rows(self) -> int:
        return self.layers[0].shape[1] if self.layers else 0

    def make_room(self, new_rows: int) -> None:
        rows = len(self.rows) + new_rows
        if rows > self.allocated_rows:
            self._resize(rows + rows // _SLACK)

    def add(self, sequences: Many[Sequence], prefix: torch.Tensor) -> None:
        """Rows that start as copies of one prefix [L, 2, K, P, D], all of its positions."""
        first, stop = len(self.rows), len(self.rows) + len(sequences)
        self.make_room(len(sequences))
        length = prefix.shape[3]
        for layer, kept in zip(self.layers, prefix, strict=True):
            layer[:, first:stop, :, :length] = kept[:, None]
        self.rows.extend(sequences)

    def copy_row(self, row: int, length: int) -> torch.Tensor:
        """A row as a prefix, to be added elsewhere."""
        return torch.stack([layer[:, row, :, :length] for layer in self.layers])

    def remove(self, rows: Many[int], *, tainted: bool) -> None:
        for row in sorted(rows, reverse=True):
            last = len(self.rows) - 1
            moved = self.rows.pop()
            if row != last:
                length = moved.cached_length
                self.rows[row] = moved
                for layer in self.layers:
                    layer[:, row, :, :length] = layer[:, last, :, :length]
            if tainted:
                for layer in self.layers:
                    layer[:, last] = 0
                    if row != last:
                        layer[:, row, :, moved.cached_length :] = 0
        if not self.rows:
            self.layers = []
        elif self.allocated_rows > 2 * len(self.rows) + 8:
            self._resize(len(self.rows) + len(self.rows) // _SLACK)

    def _resize(self, rows: int) -> None:
        """Copy layer by layer, so that only one layer is in memory twice."""
        shape = self._shape
        size = (2, rows, shape.key_heads, self.size, shape.head_width)
        kept = len(self.rows)
        for number in range(shape.layers):
            layer = torch.zeros(size, dtype=shape.dtype, device=shape.device)
            if kept:
                layer[:, :kept] = self.layers[number][:, :kept]
            if number < len(self.layers):
                self.layers[number] = layer
            else:
                self.layers.append(layer)


class CachedRows:
    """All decoding rows of one model. ``buckets`` are those in use, shortest first."""

    def __init__(self, shape: CacheShape) -> None:
        self._shape = shape
        self._buckets: dict[int, CacheBucket] = {}

    @property
    def buckets(self) -> list[CacheBucket]:
        return [self._buckets[size] for size in sorted(self._buckets)]

    def add(self, new_rows: Many[NewRows]) -> None:
        by_size = sorted(new_rows, key=lambda rows: bucket_size(rows.prefix.shape[3] + 1))
        for size, group in groupby(by_size, key=lambda rows: bucket_size(rows.prefix.shape[3] + 1)):
            bucket, joining = self._bucket(size), list(group)
            bucket.make_room(sum(len(rows.sequences) for rows in joining))
            for rows in joining:
                bucket.add(rows.sequences, rows.prefix)

    def remove(self, sequences: Many[Sequence], *, tainted: bool) -> None:
        gone = set(sequences)
        for bucket in self.buckets:
            rows = [row for row, sequence in enumerate(bucket.rows) if sequence in gone]
            if rows:
                bucket.remove(rows, tainted=tainted)
            if not bucket.rows:
                del self._buckets[bucket.size]

    def promote(self) -> None:
        """Move the rows that are full into longer buckets."""
        for bucket in self.buckets:
            full = [row for row, sequence in enumerate(bucket.rows) if sequence.cached_length >= bucket.size]
            for row in full:
                sequence = bucket.rows[row]
                self._bucket(bucket.size + 1).add([sequence], bucket.copy_row(row, sequence.cached_length))
            if full:
                bucket.remove(full, tainted=False)
            if not bucket.rows:
                del self._buckets[bucket.size]

    def _bucket(self, length: int) -> CacheBucket:
        size = bucket_size(length)
        if size not in self._buckets:
            self._buckets[size] = CacheBucket(self._shape, size)
        return self._buckets[size]
