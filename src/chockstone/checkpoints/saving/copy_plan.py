"""Copy plans: which bytes of a state this rank copies into its snapshot, and where in its memory they go.

A rank copies what it alone has. Tensors that several ranks have are divided among them by bytes. Small tensors, whose
values may differ slightly between ranks, come whole from the first rank that has them. Each rank plans from its own
state, so that no rank waits for another before it copies.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np

from chockstone.checkpoints.format.byte_runs import ByteRun, ByteRuns, box_runs
from chockstone.checkpoints.format.shards import Box
from chockstone.checkpoints.format.tar import PAGE, round_up
from chockstone.checkpoints.format.tree import Leaf

SMALL_BYTES: Final = 1024**2
_APART: Final = 64  # bytes that pieces without pages of their own are aligned to

Structure = tuple[tuple[str, str, str, tuple[int, ...], tuple[str, ...]], ...]


class TensorCopy(NamedTuple):
    """One copy of a snapshot: these rows of a tensor of a leaf, to ``place`` in memory."""

    leaf: int
    part: int
    rows: tuple[int, int] | None  # None: all of it
    shape: tuple[int, ...]
    place: int

    def source(self, leaves: Sequence[Leaf]) -> Any:  # Any: a torch tensor or a numpy array
        leaf = leaves[self.leaf]
        tensor = leaf.local_tensors[self.part] if leaf.local_tensors else leaf.value
        return tensor if self.rows is None else tensor[self.rows[0] : self.rows[1]]


@dataclass(frozen=True, slots=True)
class CopyPlan:
    """Offsets of ``runs`` are those of the arrangement, as if one process had everything."""

    structure: Structure
    leaf_places: tuple[int, ...]
    runs: ByteRuns
    places: tuple[int, ...]  # of each run, in memory
    copies: tuple[TensorCopy, ...]
    size: int  # of the memory

    @property
    def structure_digest(self) -> str:
        return hashlib.sha256(json.dumps(self.structure).encode()).hexdigest()

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.runs.rows.tobytes()).hexdigest()


class _Part(NamedTuple):
    """A box of a leaf that this rank has and could copy."""

    leaf: int
    part: int
    shape: tuple[int, ...]
    box: Box
    size: int
    replicas: Sequence[int]  # ranks that have the same box; none: only this rank


def plan_copies(leaves: Sequence[Leaf], places: Sequence[int], *, rank: int, world_size: int) -> CopyPlan:
    """``places``: where each leaf starts in the arrangement."""
    order = sorted(range(len(leaves)), key=lambda index: places[index])
    parts = [part for index in order for part in _parts(index, leaves[index], world_size)]
    choose = _chooser(parts, rank)
    runs: list[ByteRun] = []
    memory: list[int] = []
    copies: list[TensorCopy] = []
    end = 0
    for part in parts:
        rows = choose(part)
        if rows is not None and rows[0] == rows[1]:
            continue
        box = part.box if rows is None else part.box.rows(*rows)
        found = [
            run._replace(start=run.start + places[part.leaf])
            for run in box_runs(part.shape, box, leaves[part.leaf].dtype.itemsize)
        ]
        place = _place(end, runs[-1] if runs else None, found)
        copies.append(TensorCopy(part.leaf, part.part, rows, box.sizes, place))
        end = place
        for run in found:
            if runs and memory[-1] + runs[-1].size == end and (joined := _joined(runs[-1], run)) is not None:
                runs[-1] = joined
            else:
                runs.append(run)
                memory.append(end)
            end += run.size
    structure = tuple((leaf.group, leaf.key, leaf.dtype.name, tuple(leaf.shape), leaf.aliases) for leaf in leaves)
    return CopyPlan(structure, tuple(places), ByteRuns.of(runs), tuple(memory), tuple(copies), end)


def _parts(index: int, leaf: Leaf, world_size: int) -> list[_Part]:
    if leaf.shards is None:
        shape = tuple(leaf.shape)
        box = Box((0,) * len(shape), shape)
        size = box.elements * leaf.dtype.itemsize
        everyone = range(1) if isinstance(leaf.value, np.ndarray) else range(world_size)
        return [_Part(index, 0, shape, box, size, everyone)] if size else []
    shards = leaf.shards
    return [
        _Part(index, number, shards.shape, box, box.elements * leaf.dtype.itemsize, shards.replicas)
        for number, box in enumerate(shards.boxes)
        if box.elements
    ]


def _chooser(parts: Sequence[_Part], rank: int) -> Callable[[_Part], tuple[int, int] | None]:
    """Returns a function that says which rows of a part this rank copies; None for all of them.

    The large parts that the same ranks have count as one sequence of bytes, of which each rank takes an equal share.
    Cuts fall between rows, so that each copy is of a view.
    """
    starts: dict[tuple[int, int], int] = {}
    totals: dict[tuple[int, ...], int] = {}
    for part in parts:
        if part.size >= SMALL_BYTES and len(part.replicas) > 1:
            starts[part.leaf, part.part] = totals.setdefault(tuple(part.replicas), 0)
            totals[tuple(part.replicas)] += part.size

    def choose(part: _Part) -> tuple[int, int] | None:
        start = starts.get((part.leaf, part.part))
        if start is None:
            return None if not part.replicas or part.replicas[0] == rank else (0, 0)
        count = part.box.sizes[0]
        total, ranks, mine = totals[tuple(part.replicas)], len(part.replicas), list(part.replicas).index(rank)
        cuts = [total * number // ranks - start for number in (mine, mine + 1)]
        first, last = (min(max((cut * count + part.size // 2) // part.size, 0), count) for cut in cuts)
        return None if (first, last) == (0, count) else (first, last)

    return choose


def _place(end: int, last: ByteRun | None, found: Sequence[ByteRun]) -> int:
    """The next place in memory. Whole pages of the file are whole pages of memory, so they are written from there."""
    if len(found) > 1 or found[0].times > 1:
        return round_up(end, _APART)
    if last is not None and _joined(last, found[0]) is not None:
        return end
    return round_up(end, PAGE) + found[0].start % PAGE


def _joined(first: ByteRun, second: ByteRun) -> ByteRun | None:
    """Two runs as one, where the second begins at the end of the first; else None."""
    if first.times != 1 or second.times != 1 or second.start != first.start + first.size:
        return None
    size = first.size + second.size
    return ByteRun(first.start, size, size, 1)
