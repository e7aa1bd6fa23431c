"""Micro-batches: which datums of a pass are computed together, and by whom.

A function of the request and the number of processes alone, so the same operation always gives the same bits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

TOKENS_ON_CPU: Final = 1024  # more is hardly faster, takes memory and keeps others waiting
TOKENS_ON_GPU: Final = 8192


@dataclass(frozen=True, slots=True)
class DatumExtent:
    """How much room a datum takes."""

    positions: int
    targets: int  # per position


def plan_micro_batches(extents: Sequence[DatumExtent], *, tokens: int) -> list[tuple[int, ...]]:
    """Indices of datums, grouped: the same number of targets, similar length, longest first.

    A group's padded size stays within ``tokens``, unless a single datum is longer than that.
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
    """Rounds: what each process computes at the same time as the others.

    Whole groups as long as there is one for everyone; what remains is split up, datum by datum, so that a process
    may go without.
    """
    whole = len(groups) // processes * processes
    for start in range(0, whole, processes):
        yield tuple(groups[start : start + processes])
    for group in groups[whole:]:
        yield tuple(group[process::processes] for process in range(processes))
