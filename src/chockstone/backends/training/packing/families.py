"""Families: sequences that begin alike, such as the answers to one prompt.

A family computes its common beginning once. The families of a request are those that save the most positions, found in
the tree of common beginnings. They depend on the sequences alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

Content = npt.NDArray[np.int64]  # [positions, columns]: the token of each position, then its targets
_LEAST: Final = 16  # positions of a beginning that is worth sharing


@dataclass(frozen=True, slots=True)
class SequenceFamily:
    members: tuple[int, ...]  # indices of sequences; the longest first
    prefix: int  # positions that all members have in common; 0 for a single one


@dataclass(slots=True)
class _Interval:
    """Neighbours in the sorted order that have ``common`` positions in common: a node of the tree."""

    common: int
    left: int
    right: int = 0  # inclusive
    saved: int = 0  # positions
    chosen: list[_Interval] = field(default_factory=list)  # below or at this node

    def settle(self, right: int) -> None:
        """Choose between this interval and the ones that were chosen below it."""
        self.right = right
        own = self.common * (self.right - self.left)
        if self.common >= _LEAST and own >= self.saved:
            self.saved, self.chosen = own, [self]

    def adopt(self, child: _Interval) -> None:
        self.saved += child.saved
        if len(child.chosen) > len(self.chosen):  # extend the longer list, so that a deep tree takes no quadratic time
            self.chosen, child.chosen = child.chosen, self.chosen
        self.chosen += child.chosen


def find_families(contents: Sequence[Content]) -> list[SequenceFamily]:
    """Every sequence is in one family. All contents have the same number of columns."""
    order = sorted(range(len(contents)), key=lambda i: (contents[i][:, 0].astype(">i8").tobytes(), i))
    families: list[SequenceFamily] = []
    covered: set[int] = set()
    for interval in _choose(contents, order):
        members = order[interval.left : interval.right + 1]
        members.sort(key=lambda i: (-len(contents[i]), i))
        families.append(SequenceFamily(tuple(members), interval.common))
        covered.update(members)
    return families + [SequenceFamily((index,), 0) for index in range(len(contents)) if index not in covered]


def _choose(contents: Sequence[Content], order: Sequence[int]) -> list[_Interval]:
    """Walks the tree of common beginnings from the leaves to the root, with the open nodes on a stack."""
    root = _Interval(0, 0)
    stack = [root]
    for place in range(1, len(order)):
        common = _count_common(contents[order[place - 1]], contents[order[place]])
        left = place - 1
        last: _Interval | None = None
        while common < stack[-1].common:
            last = stack.pop()
            last.settle(place - 1)
            left = last.left
            if common <= stack[-1].common:
                stack[-1].adopt(last)
                last = None
        if common > stack[-1].common:
            node = _Interval(common, left)
            if last is not None:
                node.adopt(last)
            stack.append(node)
    while len(stack) > 1:
        node = stack.pop()
        node.settle(len(order) - 1)
        stack[-1].adopt(node)
    return root.chosen


def _count_common(one: Content, other: Content) -> int:
    length = min(len(one), len(other))
    differs = (one[:length] != other[:length]).any(axis=1)
    return int(differs.argmax()) if differs.any() else length
