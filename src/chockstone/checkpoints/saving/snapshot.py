"""Snapshots: one consistent copy of a state in host memory, laid out as the archive will be.

The trainer waits for this copy only; a writer may follow it through the memory. Where each tensor goes depends on names
and shapes alone, so an arrangement is planned once and reused while they stay the same.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from chockstone.checkpoints.errors import CheckpointError, UnstorableValue
from chockstone.checkpoints.format.host_memory import Bytes, HostBuffer
from chockstone.checkpoints.format.safetensors_header import SUFFIX, order_tensors, render_header
from chockstone.checkpoints.format.tar import PAGE, round_up
from chockstone.checkpoints.format.tree import MAX_STATE_BYTES, Leaf, Tree, flatten
from chockstone.checkpoints.saving.copy_plan import CopyPlan, plan_copies
from chockstone.checkpoints.saving.copy_progress import CopyProgress
from chockstone.checkpoints.saving.tensor_copies import Place, TensorCopies, place_of

Signature = tuple[object, ...]  # what decides where tensors go


@dataclass(frozen=True, slots=True)
class Section:
    """One safetensors member: its header, and where its data stands in the host buffer."""

    name: str
    header: bytes
    start: int
    size: int


@dataclass(frozen=True, slots=True)
class Arrangement:
    sections: tuple[Section, ...]
    places: tuple[int, ...]  # of each leaf, in the host buffer
    size: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a writer needs: small members as bytes, large ones as sections of ``memory``."""

    skeleton: Mapping[str, Any]
    sections: tuple[Section, ...]
    memory: Bytes
    progress: CopyProgress  # until it has ended, only what it says is in ``memory``
    copy_plan: CopyPlan | None = None  # which bytes ``memory`` holds, where several ranks share the state

    @property
    def tensor_bytes(self) -> int:
        return sum(section.size for section in self.sections)


@dataclass(frozen=True, slots=True)
class SnapshotCopy:
    """A snapshot whose tensors are still to be copied. Call ``run`` once."""

    snapshot: Snapshot
    copies: TensorCopies
    sources: Sequence[Any]  # Any: tensors and arrays

    def run(self, is_abandoned: Callable[[], bool]) -> Snapshot:
        """Copy the tensors. On return the caller may change the state; the snapshot does not refer to it."""
        progress = self.snapshot.progress
        try:
            self.copies.run(self.sources, is_abandoned, progress.advance)
            progress.end()
        except BaseException as error:
            progress.fail(error)
            raise
        return self.snapshot


def encode_state(skeleton: Mapping[str, Any]) -> bytes:
    """The small member with the values of a state that are no tensors."""
    payload = json.dumps(skeleton, separators=(",", ":")).encode("ascii")
    if len(payload) > MAX_STATE_BYTES:
        raise CheckpointError(
            f"the values of the state that are no tensors take {len(payload)} bytes as JSON, over the limit "
            f"of {MAX_STATE_BYTES}; keep large sequences as tensors or numpy arrays"
        )
    return payload


def arrange(leaves: list[Leaf]) -> Arrangement:
    groups: dict[str, list[int]] = {}
    for index, leaf in enumerate(leaves):
        groups.setdefault(leaf.group, []).append(index)
    sections: list[Section] = []
    places = [0] * len(leaves)
    position = 0
    for group, indices in groups.items():
        triples = [(leaves[i].key, leaves[i].dtype.stored, leaves[i].stored_shape) for i in indices]
        order = order_tensors([(leaves[i].dtype.itemsize, leaves[i].key) for i in indices])
        ties = {alias: leaves[i].key for i in indices for alias in leaves[i].aliases}
        header, offsets = render_header([triples[o] for o in order], metadata={**ties, "format": "pt"})
        for o, offset in zip(order, offsets, strict=True):
            places[indices[o]] = position + offset
        size = offsets[-1] + _stored_bytes(leaves[indices[order[-1]]])
        sections.append(Section(group + SUFFIX, header, position, size))
        position += round_up(size, PAGE)
    return Arrangement(tuple(sections), tuple(places), position)


class Snapshotter:
    """Copies states into one host buffer. One snapshot is valid until the next is begun.

    As one of several ranks it copies only this rank's part.
    """

    def __init__(self) -> None:
        self._buffer = HostBuffer()
        self._signature: Signature | None = None
        self._arrangement = Arrangement((), (), 0)
        self._copy_plan: CopyPlan | None = None
        self._copies: TensorCopies | None = None
        self._generation = 0

    def take(
        self,
        state: Mapping[str, object],
        *,
        is_abandoned: Callable[[], bool] = lambda: False,
        rank: int = 0,
        world_size: int = 1,
    ) -> Snapshot:
        """Copy ``state``. On return the caller may change it; the snapshot does not refer to it."""
        return self.begin(flatten(state), rank=rank, world_size=world_size).run(is_abandoned)

    def begin(self, tree: Tree, *, rank: int = 0, world_size: int = 1) -> SnapshotCopy:
        """Arrange a flattened state in memory. All ranks give the same leaves in the same order."""
        leaves = tree.leaves
        signature: Signature = (rank, world_size, *(_facts(leaf) for leaf in leaves))
        if signature != self._signature:
            self._signature = None  # first: an interrupt must not leave it with another arrangement
            self._arrangement = arrange(leaves)
            self._copy_plan = _plan_copies(leaves, self._arrangement, rank, world_size)
            self._copies = None  # frees the old memory before the new is allocated
        plan = self._copy_plan
        memory = self._buffer.reserve(self._arrangement.size if plan is None else plan.size)
        if self._copies is None or self._signature is None or self._generation != self._buffer.generation:
            self._copies = TensorCopies(memory, self._places(leaves))
            self._signature, self._generation = signature, self._buffer.generation
        sources = [leaf.value for leaf in leaves] if plan is None else [one.source(leaves) for one in plan.copies]
        snapshot = Snapshot(tree.skeleton, self._arrangement.sections, memory, CopyProgress(), plan)
        return SnapshotCopy(snapshot, self._copies, sources)

    def _places(self, leaves: Sequence[Leaf]) -> list[Place]:
        if self._copy_plan is None:
            pairs = zip(self._arrangement.places, leaves, strict=True)
            return [place_of(start, leaf.shape, leaf.dtype.itemsize) for start, leaf in pairs]
        return [place_of(one.place, one.shape, leaves[one.leaf].dtype.itemsize) for one in self._copy_plan.copies]


def _facts(leaf: Leaf) -> tuple[object, ...]:
    is_numpy = type(leaf.value) is np.ndarray
    return leaf.group, leaf.key, leaf.dtype.name, leaf.shape, is_numpy, leaf.aliases, leaf.shards


def _plan_copies(leaves: list[Leaf], arrangement: Arrangement, rank: int, world_size: int) -> CopyPlan | None:
    """None where the snapshot is the whole state."""
    divided = [leaf for leaf in leaves if leaf.shards is not None]
    if world_size == 1:
        if not divided:
            return None
        for leaf in divided:
            if leaf.shards is not None and not leaf.shards.is_whole:
                raise UnstorableValue(
                    f"{leaf.group}.{leaf.key}",
                    "this process has only a part of it. Initialise torch.distributed on all that have the others, and "
                    'let all of them save, with ranks="auto"',
                )
    return plan_copies(leaves, arrangement.places, rank=rank, world_size=world_size)


def _stored_bytes(leaf: Leaf) -> int:
    count = leaf.dtype.itemsize
    for extent in leaf.shape:
        count *= extent
    return count
