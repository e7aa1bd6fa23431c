"""Byte runs: which bytes of a file one rank has, and the position of each in the sequence of those bytes.

A run is ``times`` rows of ``length`` bytes, one every ``stride``. However a tensor is divided along one of its
dimensions, what a rank has of it is one run, so that few numbers say who has what.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from typing import Any, NamedTuple, Self

import numpy as np

from chockstone.checkpoints.format.shards import Box

Numbers = np.ndarray[Any, np.dtype[np.int64]]


class ByteRun(NamedTuple):
    start: int
    length: int
    stride: int
    times: int

    @property
    def size(self) -> int:
        return self.length * self.times


class ByteCut(NamedTuple):
    """A run, or what of it lies in a range, and where its first byte stands in the stream."""

    run: ByteRun
    position: int


def box_runs(shape: Sequence[int], box: Box, itemsize: int) -> list[ByteRun]:
    """The bytes of a box, from the start of its tensor, in rising order. In this order they stand in the box, too."""
    if not box.elements:
        return []
    steps = [itemsize * math.prod(shape[dimension + 1 :]) for dimension in range(len(shape))]
    cut = max((i for i, size in enumerate(box.sizes) if size != shape[i]), default=-1)  # within it rows are whole
    if cut < 0:
        size = itemsize * math.prod(shape)
        return [ByteRun(0, size, size, 1)]
    start, length = box.offsets[cut] * steps[cut], box.sizes[cut] * steps[cut]
    count, outer = 1, cut
    while outer > 0 and (outer == cut or box.sizes[outer] == shape[outer]):  # rows follow each other evenly
        outer -= 1
        start += box.offsets[outer] * steps[outer]
        count *= box.sizes[outer]
    stride = steps[cut - 1] if count > 1 else length
    ranges = [
        range(box.offsets[i] * steps[i], (box.offsets[i] + box.sizes[i]) * steps[i], steps[i]) for i in range(outer)
    ]
    return [ByteRun(start + sum(bases), length, stride, count) for bases in product(*ranges)]


class ByteRuns:
    """Many runs in rising order that do not overlap."""

    def __init__(self, rows: Numbers) -> None:
        """``rows``: start, length, stride and times of each."""
        self.rows = rows
        self._starts = np.ascontiguousarray(rows[:, 0])
        self._positions = np.concatenate(([0], np.cumsum(rows[:, 1] * rows[:, 3])))

    @classmethod
    def of(cls, runs: Iterable[ByteRun]) -> Self:
        return cls(np.array(list(runs), dtype=np.int64).reshape(-1, 4))

    @property
    def size(self) -> int:
        return int(self._positions[-1])

    def moved(self, distances: Numbers) -> ByteRuns:
        rows = self.rows.copy()
        rows[:, 0] += distances
        return ByteRuns(rows)

    def before(self, offsets: Numbers) -> Numbers:
        """How many bytes stand before each of these offsets: the place in the stream of the first that does not."""
        if not len(self.rows):
            return np.zeros(len(offsets), dtype=np.int64)
        index = np.maximum(np.searchsorted(self._starts, offsets, side="right") - 1, 0)
        start, length, stride, times = self.rows[index].T
        into = np.maximum(offsets - start, 0)
        row = np.minimum(into // stride, times - 1)
        counted: Numbers = self._positions[index] + row * length + np.minimum(into - row * stride, length)
        return counted

    def within(self, start: int, end: int) -> Iterator[ByteCut]:
        """What of the runs lies from ``start`` to ``end``, in rising order."""
        index = max(int(np.searchsorted(self._starts, start, side="right")) - 1, 0)
        stop = int(np.searchsorted(self._starts, end, side="left"))
        for i in range(index, stop):
            yield from _cut(ByteRun(*map(int, self.rows[i])), int(self._positions[i]), start, end)

    def locate(self, position: int) -> tuple[int, int]:
        """Which run a place in the stream lies in, and how far."""
        index = int(np.searchsorted(self._positions, position, side="right")) - 1
        return index, position - int(self._positions[index])


def _cut(run: ByteRun, position: int, start: int, end: int) -> Iterator[ByteCut]:
    row = max((start - run.start) // run.stride, 0)
    while row < run.times and (at := run.start + row * run.stride) < end:
        if start <= at and at + run.length <= end:
            whole = min(run.times - row, (end - run.length - at) // run.stride + 1)
            yield ByteCut(ByteRun(at, run.length, run.stride, whole), position + row * run.length)
            row += whole
            continue
        low, high = max(at, start), min(at + run.length, end)
        if low < high:
            yield ByteCut(ByteRun(low, high - low, high - low, 1), position + row * run.length + low - at)
        row += 1


def spread(cuts: Sequence[ByteCut]) -> tuple[Numbers, Numbers]:
    """Start and length of every row, in the order of the cuts."""
    counts = np.array([cut.run.times for cut in cuts], dtype=np.int64)
    rows = np.array([cut.run for cut in cuts], dtype=np.int64).reshape(-1, 4)
    index = np.repeat(np.arange(len(cuts)), counts)
    number = np.arange(len(index)) - np.repeat(np.cumsum(counts) - counts, counts)
    return rows[index, 0] + number * rows[index, 2], rows[index, 1]
