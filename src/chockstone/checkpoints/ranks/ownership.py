"""Ownership: which rank hashes and writes which bytes of the archive.

The file is cut into units; one rank writes each unit whole. A unit goes to a rank that has about as much of it as any
other; where several do, they get equal numbers of units. The other ranks send their bytes of the unit to its owner.
Head and tail of the archive and the small members, which rank 0 alone has, belong to rank 0. Every rank computes the
same plan.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np

from chockstone.checkpoints.format.byte_runs import ByteRuns, Numbers
from chockstone.checkpoints.format.layout import Layout
from chockstone.checkpoints.format.tar import PAGE
from chockstone.checkpoints.saving.writer import CHUNK_BYTES

Flags = np.ndarray[Any, np.dtype[np.bool_]]
ROUND_BYTES: Final = 8 * 1024**2  # that one rank assembles at a time from what others send


class Chunk(NamedTuple):
    """Bytes of the body that one rank writes at a time."""

    owner: int
    start: int
    end: int
    needed_to: int  # beyond ``end``, where a block that begins here does not end here: its digest is made here
    blocks: range  # that begin here


@dataclass(frozen=True, slots=True)
class Ownership:
    pure: tuple[Chunk, ...]  # chunks of which the owner has all bytes
    rounds: tuple[tuple[Chunk, ...], ...]  # the other chunks, by the round in which bytes are exchanged

    def of(self, rank: int) -> list[Chunk]:
        chunks = [*self.pure, *(chunk for each in self.rounds for chunk in each)]
        return [chunk for chunk in chunks if chunk.owner == rank]


def tail_start(layout: Layout) -> int:
    """The page in which the body ends; from there on the bytes wait for COMMIT."""
    return layout.body_end // PAGE * PAGE


def plan_ownership(
    layout: Layout, rank_runs: Sequence[ByteRuns], *, unit_bytes: int, shared_from: int, chunk_bytes: int = CHUNK_BYTES
) -> Ownership:
    """``rank_runs``: what each rank has of the file. ``shared_from``: where what rank 0 alone has ends.

    ``chunk_bytes``, of pure chunks, is each rank's own affair.
    """
    cuts = _cuts(layout, unit_bytes)
    starts, ends = np.maximum(cuts[:-1], layout.body_offset), np.minimum(cuts[1:], layout.body_end)
    before = np.array([runs.before(starts) for runs in rank_runs])
    supplied = np.array([runs.before(ends) for runs in rank_runs]) - before
    owners = _owners(supplied, is_first=(starts < shared_from) | (cuts[1:] > tail_start(layout)))
    blocks_from, blocks_to = (-(-(edges - layout.body_offset) // layout.block_bytes) for edges in (starts, ends))
    block_ends = np.minimum(layout.body_offset + blocks_to * layout.block_bytes, layout.body_end)
    needed_to = np.where(blocks_to > blocks_from, np.maximum(ends, block_ends), ends)
    needed = np.array([runs.before(needed_to) for runs in rank_runs]) - before
    is_mixed = needed.sum(axis=0) != needed[owners, np.arange(len(owners))]

    def chunk(first: int, last: int) -> Chunk:
        blocks = range(int(blocks_from[first]), int(blocks_to[last]))
        needs = int(needed_to[first : last + 1].max())
        return Chunk(int(owners[first]), int(starts[first]), int(ends[last]), needs, blocks)

    stretches = list(_stretches(owners, is_mixed, ends - starts, chunk_bytes))
    pure = tuple(chunk(first, last) for first, last in stretches if not is_mixed[first])
    mixed = [chunk(first, last) for first, last in stretches if is_mixed[first]]
    return Ownership(pure, tuple(_rounds(mixed)))


def _cuts(layout: Layout, unit_bytes: int) -> Numbers:
    """From 0 to the size of the archive. Where the store does not mind, units are blocks."""
    first, step = (layout.body_offset, layout.block_bytes) if unit_bytes <= PAGE else (0, unit_bytes)
    edges = np.arange(first, tail_start(layout), step, dtype=np.int64)
    return np.concatenate(([0], edges[edges > layout.body_offset], [layout.size]))


def _owners(supplied: Numbers, *, is_first: Flags) -> Numbers:
    """A rank for each unit, from how much of it each rank has."""
    is_candidate = supplied * 4 >= supplied.max(axis=0) * 3
    is_candidate[:, is_first] = False
    is_candidate[0, is_first] = True
    owners = np.zeros(supplied.shape[1], dtype=np.int64)
    kinds, kind_of = np.unique(np.packbits(is_candidate, axis=0), axis=1, return_inverse=True)
    for kind in range(kinds.shape[1]):
        units = np.flatnonzero(kind_of.reshape(-1) == kind)
        candidates = np.flatnonzero(is_candidate[:, units[0]])
        owners[units] = candidates[np.arange(len(units)) * len(candidates) // len(units)]
    return owners


def _stretches(owners: Numbers, is_mixed: Flags, sizes: Numbers, chunk_bytes: int) -> Iterator[tuple[int, int]]:
    """First and last of neighbouring units of one owner and one kind, no more at once than a chunk takes."""
    first, size = 0, 0
    kinds = list(zip(owners.tolist(), is_mixed.tolist(), strict=True))
    for unit, unit_bytes in enumerate(sizes.tolist()):
        limit = ROUND_BYTES if kinds[first][1] else chunk_bytes
        if unit > first and (kinds[unit] != kinds[first] or size + unit_bytes > limit):
            yield first, unit - 1
            first, size = unit, 0
        size += unit_bytes
    yield first, len(owners) - 1


def _rounds(chunks: Sequence[Chunk]) -> Iterator[tuple[Chunk, ...]]:
    """For each owner as many chunks at a time as fit; all owners put theirs together at the same time."""
    filled: dict[int, int] = {}
    rounds: dict[int, list[Chunk]] = {}
    turn: dict[int, int] = {}
    for chunk in chunks:
        size = chunk.needed_to - chunk.start
        if filled.get(chunk.owner, 0) and filled[chunk.owner] + size > ROUND_BYTES:
            turn[chunk.owner] = turn.get(chunk.owner, 0) + 1
            filled[chunk.owner] = 0
        filled[chunk.owner] = filled.get(chunk.owner, 0) + size
        rounds.setdefault(turn.get(chunk.owner, 0), []).append(chunk)
    for number in sorted(rounds):
        yield tuple(rounds[number])
