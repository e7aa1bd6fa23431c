"""Micro-batches: which datums of a pass are computed together, and by which process.

The plan depends only on the request and the number of processes, so the same operation always gives the same bits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from chockstone.backends.training.packing.families import Content, find_families

TOKENS_ON_CPU: Final = 1024  # more is hardly faster, takes memory and makes other tasks wait
TOKENS_ON_GPU: Final = 8192
_OPEN: Final = 32  # micro-batches that are looked at for room, so that many datums take no quadratic time


@dataclass(frozen=True, slots=True)
class DatumExtent:
    """The size of a datum."""

    positions: int
    targets: int  # per position


def plan_micro_batches(extents: Sequence[DatumExtent], *, tokens: int) -> list[tuple[int, ...]]:
    """Group the indices of datums: the same number of targets, similar length, longest first.

    The padded size of a group is at most ``tokens``, unless a single datum is longer.
    """
    order = sorted(range(len(extents)), key=lambda i: (-extents[i].targets, -extents[i].positions, i))
    groups: list[tuple[int, ...]] = []
    group: list[int] = []
    for index in order:
        longest = extents[group[0]] if group else extents[index]
        is_alike = longest.targets == extents[index].targets
        if group and (not is_alike or (len(group) + 1) * longest.positions > tokens):
            groups.append(tuple(group))
            group = []
        group.append(index)
    return [*groups, tuple(group)] if group else groups


def plan_packed(contents: Sequence[Content], *, tokens: int) -> list[tuple[int, ...]]:
    """Group the indices of datums that are computed without padding: the same number of targets, families together.

    A group has at most ``tokens`` flat positions, unless a single datum is longer. Pieces go to the first of the open
    groups that has room for them, largest first.
    """
    found: list[tuple[int, ...]] = []
    for targets in sorted({content.shape[1] for content in contents}, reverse=True):
        alike = [index for index, content in enumerate(contents) if content.shape[1] == targets]
        groups: list[list[int]] = []
        room: list[int] = []
        for size, piece in _pieces([contents[index] for index in alike], tokens=tokens):
            first = max(0, len(groups) - _OPEN)
            place = next((place for place in range(first, len(groups)) if room[place] >= size), len(groups))
            if place == len(groups):
                groups.append([])
                room.append(tokens)
            groups[place] += [alike[member] for member in piece]
            room[place] -= size
        found += [tuple(sorted(group, key=lambda i: (-len(contents[i]), i))) for group in groups]
    return found


def _pieces(contents: Sequence[Content], *, tokens: int) -> list[tuple[int, list[int]]]:
    """Families, or parts of large ones, with their flat sizes; the largest first."""
    pieces: list[tuple[int, list[int]]] = []
    for family in find_families(contents):
        size, piece = 0, list[int]()
        for member in family.members:
            added = len(contents[member]) - (family.prefix if piece else 0)
            if piece and size + added > tokens:
                pieces.append((size, piece))
                size, piece, added = 0, [], len(contents[member])
            size += added
            piece.append(member)
        pieces.append((size, piece))
    return sorted(pieces, key=lambda piece: (-piece[0], piece[1][0]))


def deal(groups: Sequence[tuple[int, ...]], *, processes: int) -> Iterator[tuple[tuple[int, ...], ...]]:
    """Rounds: what the processes compute at the same time, by rank.

    Each process gets a whole group while there is one for every process. The remaining groups are split by datum, so a
    process may get nothing.
    """
    whole = len(groups) // processes * processes
    for start in range(0, whole, processes):
        yield tuple(groups[start : start + processes])
    for group in groups[whole:]:
        yield tuple(group[process::processes] for process in range(processes))
