"""Snapshots: one consistent copy of a state in host memory, laid out as the archive will be.

The copy is the only time a trainer waits for. Where each tensor goes depends on names and shapes
alone, so an arrangement is worked out once and used again while they stay the same.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from chockstone.checkpoints.errors import CheckpointError, SaveAbandoned
from chockstone.checkpoints.memory import Bytes, HostBuffer
from chockstone.checkpoints.tar import PAGE, round_up
from chockstone.checkpoints.tensorfile import SUFFIX, order_tensors, render_header
from chockstone.checkpoints.tree import Leaf, Tree, flatten

STATE: Final = "state.json"
MAX_STATE_BYTES: Final = 64 * 1024**2

Signature = tuple[tuple[str, str, str, tuple[int, ...], bool, tuple[str, ...]], ...]


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

    @property
    def tensor_bytes(self) -> int:
        return sum(section.size for section in self.sections)

    def encode_state(self) -> bytes:
        payload = json.dumps(self.skeleton, separators=(",", ":")).encode("ascii")
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
    """Copies states into one host buffer. One snapshot is valid until the next is taken."""

    def __init__(self) -> None:
        self._buffer = HostBuffer()
        self._signature: Signature | None = None
        self._arrangement = Arrangement((), (), 0)
        self._targets: list[Any] = []  # Any: torch tensors and numpy arrays over the buffer
        self._generation = 0

    def take(self, state: Mapping[str, object], *, is_abandoned: Callable[[], bool] = lambda: False) -> Snapshot:
        """Copy ``state``. On return the caller may change it; nothing of it is referred to."""
        tree = flatten(state)
        signature: Signature = tuple(
            (leaf.group, leaf.key, leaf.dtype.name, leaf.shape, type(leaf.value) is np.ndarray, tuple(leaf.aliases))
            for leaf in tree.leaves
        )
        if signature != self._signature:
            self._signature = None  # first: an interrupt must not leave it with another arrangement
            self._arrangement = arrange(tree.leaves)
            self._targets = []  # they would keep the old memory alive while the new is made
        memory = self._buffer.reserve(self._arrangement.size)
        if self._signature is None or self._generation != self._buffer.generation:
            places = self._arrangement.places
            self._targets = [_view(memory, place, leaf) for place, leaf in zip(places, tree.leaves, strict=True)]
            self._signature, self._generation = signature, self._buffer.generation
        _copy(tree, self._targets, is_abandoned)
        return Snapshot(tree.skeleton, self._arrangement.sections, memory)


def _copy(tree: Tree, targets: list[Any], is_abandoned: Callable[[], bool]) -> None:
    torch = sys.modules.get("torch")
    into: list[Any] = []
    out_of: list[Any] = []
    for leaf, target in zip(tree.leaves, targets, strict=True):
        if isinstance(leaf.value, np.ndarray):
            np.copyto(target, leaf.value)
        elif target is not None:
            into.append(target)
            out_of.append(leaf.value)
    if torch is None or not into:
        return
    streams = [torch.cuda.Stream(device) for device in {t.device for t in out_of if t.device.type == "cuda"}]
    with ExitStack() as side, torch.no_grad():
        for stream in streams:  # wait for the work that makes the values, then copy beside whatever comes next
            stream.wait_stream(torch.cuda.current_stream(stream.device))
            side.enter_context(torch.cuda.stream(stream))
        for first in range(0, len(into), _COPY_BATCH):
            if is_abandoned():
                raise SaveAbandoned("the save was abandoned while its state was being copied; nothing was written")
            batch = slice(first, first + _COPY_BATCH)
            torch._foreach_copy_(into[batch], out_of[batch], non_blocking=bool(streams))
        for stream in streams:
            stream.synchronize()


_COPY_BATCH = 64


def _stored_bytes(leaf: Leaf) -> int:
    count = leaf.dtype.itemsize
    for extent in leaf.shape:
        count *= extent
    return count


def _view(memory: Bytes, place: int, leaf: Leaf) -> Any:
    """The part of the buffer that one tensor is copied into; None for an empty one."""
    size = _stored_bytes(leaf)
    if isinstance(leaf.value, np.ndarray):
        return memory[place : place + size].view(leaf.value.dtype).reshape(leaf.shape)
    if size == 0:
        return None
    import torch

    return torch.from_numpy(memory[place : place + size]).view(leaf.value.dtype).view(leaf.shape)
