# tensors carry their axes
"""Layouts: where each position of a micro-batch is in the flat batch, and in the padded blocks that attention sees.

The flat batch has every position once; the members of a family share the positions of their prefix. For attention, its
positions are copied to blocks: sequences of similar length, padded on the right, each of them whole.

Shapes: R positions of all sequences in their order, F flat positions, P positions in blocks, padding included.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import torch

from chockstone.backends.training.packing.families import Content, SequenceFamily, find_families

Indices = npt.NDArray[np.int64]
_ALIKE: Final = 0.75  # of the longest sequence in a block: shorter ones begin a new block
_SHORT: Final = 64  # positions: sequences up to this length share a block, because a further call costs more


@dataclass(frozen=True, slots=True)
class Block:
    """Sequences that attend in one call."""

    start: int  # in P
    sequences: int
    width: int  # of each, padded

    @property
    def positions(self) -> int:
        return self.sequences * self.width


@dataclass(frozen=True, slots=True)
class SharedPrefix:
    """Copies of a prefix in one block, besides the copy that its flat positions are read from."""

    flat_start: int
    length: int
    block: Block
    first: int  # number of the first sequence of the block that has a further copy
    last: int  # exclusive


@dataclass(frozen=True, slots=True, eq=False)
class PackedBatch:
    tokens_F: torch.Tensor
    positions_F: torch.Tensor  # in their sequence
    rows_R: torch.Tensor | None  # flat position of each position; None: F is R, in the same order
    sources_P: torch.Tensor | None  # flat position of each position in the blocks; None: P is F, in the same order
    places_F: torch.Tensor  # position in the blocks of each flat position; of its first copy
    is_copy_P: torch.Tensor  # [P, 1]: padding, and further copies of a prefix
    has_copies: bool
    blocks: tuple[Block, ...]
    prefixes: tuple[SharedPrefix, ...]
    longest: int  # the longest sequence; it is at the beginning of the flat batch, in one piece


def pack(contents: Sequence[Content], device: torch.device) -> PackedBatch:
    """The layout of these sequences. It depends on nothing else."""
    lengths = [len(content) for content in contents]
    families = sorted(find_families(contents), key=lambda family: (-lengths[family.members[0]], family.members[0]))
    rows, size = _flat_rows(families, lengths)
    tokens_F, positions_F = np.zeros((2, size), dtype=np.int64)
    for content, row in zip(contents, rows, strict=True):
        tokens_F[row], positions_F[row] = content[:, 0], np.arange(len(row))
    blocks, prefixes, sources_P, places_F = _arrange(families, rows, size)
    is_copy_P = np.ones((len(sources_P), 1), dtype=np.bool_)
    is_copy_P[places_F] = False
    rows_R = np.concatenate(rows)
    return PackedBatch(
        tokens_F=_tensor(tokens_F, device),
        positions_F=_tensor(positions_F, device),
        rows_R=None if _is_identity(rows_R, size) else _tensor(rows_R, device),
        sources_P=None if _is_identity(sources_P, size) else _tensor(sources_P, device),
        places_F=_tensor(places_F, device),
        is_copy_P=torch.from_numpy(is_copy_P).to(device),
        has_copies=bool(is_copy_P.any()),
        blocks=tuple(blocks),
        prefixes=tuple(prefixes),
        longest=max(lengths),
    )


def _flat_rows(families: Sequence[SequenceFamily], lengths: Sequence[int]) -> tuple[list[Indices], int]:
    """The flat positions of each sequence, and the size of the flat batch."""
    rows: list[Indices] = [np.empty(0, dtype=np.int64)] * len(lengths)
    size = 0
    for family in families:
        shared = np.arange(size, size + family.prefix)
        for number, member in enumerate(family.members):
            common = family.prefix if number else 0  # the first member brings the prefix
            rows[member] = np.concatenate([shared[:common], np.arange(size, size + lengths[member] - common)])
            size += lengths[member] - common
    return rows, size


def _arrange(
    families: Sequence[SequenceFamily], rows: Sequence[Indices], size: int
) -> tuple[list[Block], list[SharedPrefix], Indices, Indices]:
    """Blocks, further copies of prefixes in them, the source of each position in blocks, the place of each flat one."""
    blocks: list[Block] = []
    prefixes: list[SharedPrefix] = []
    sources: list[Indices] = []
    places_F = np.full(size, -1, dtype=np.int64)
    start = 0
    alone = [family.members[0] for family in families if len(family.members) == 1]
    related = [family for family in families if len(family.members) > 1]
    for members, family in [*((each, None) for each in _alike(alone, rows)), *_blocks_of(related, rows)]:
        width = len(rows[members[0]])
        block = Block(start, len(members), width)
        blocks.append(block)
        for number, member in enumerate(members):
            row = rows[member]
            begin = start + number * width
            sources.append(np.concatenate([row, np.full(width - len(row), row[0])]))
            is_new = places_F[row] < 0
            places_F[row[is_new]] = begin + np.flatnonzero(is_new)
        if family is not None:
            first = 1 if members[0] == family.members[0] else 0
            flat_start = int(rows[members[0]][0])
            prefixes.append(SharedPrefix(flat_start, family.prefix, block, first, len(members)))
        start += block.positions
    return blocks, prefixes, np.concatenate(sources), places_F


def _blocks_of(
    families: Sequence[SequenceFamily], rows: Sequence[Indices]
) -> list[tuple[list[int], SequenceFamily | None]]:
    """A member that is its family's prefix and no more needs no attention of its own."""
    return [
        (members, family)
        for family in families
        for members in _alike(
            [each for number, each in enumerate(family.members) if not number or len(rows[each]) > family.prefix], rows
        )
    ]


def _alike(members: Sequence[int], rows: Sequence[Indices]) -> list[list[int]]:
    """Split by length. The members are sorted, longest first."""
    found: list[list[int]] = []
    for member in members:
        width = len(rows[found[-1][0]]) if found else 0
        if found and (width <= _SHORT or len(rows[member]) >= _ALIKE * width):
            found[-1].append(member)
        else:
            found.append([member])
    return found


def _is_identity(indices: Indices, size: int) -> bool:
    return len(indices) == size and bool((indices == np.arange(size)).all())


def _tensor(values: Indices, device: torch.device) -> torch.Tensor:
    return torch.from_numpy(values).to(device)
