"""Micro-batches: which datums of a pass are computed together, and by which process.

The plan depends only on the request and the number of processes, so the same operation always gives the same bits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

TOKENS_ON_CPU: Final = 1024  # more is hardly faster, takes memory and makes other tasks wait
TOKENS_ON_GPU: Final = 8192


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
