"""Differences: what changed from one archive to another, found by comparing bytes.

Two archives are the same when restoring either gives the same state and extracting either gives the
same files. Names, steps, times and metrics are facts about a checkpoint and not compared, nor is how
the bytes are laid out. No torch is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import numpy as np

from chockstone.checkpoints.format.dtypes import BY_NAME, Dtype
from chockstone.checkpoints.format.host_memory import Bytes, allocate
from chockstone.checkpoints.format.layout import Member
from chockstone.checkpoints.format.outline import Node, Place, outline, walk
from chockstone.checkpoints.format.safetensors_header import SUFFIX
from chockstone.checkpoints.format.tar import PAGE, round_up
from chockstone.checkpoints.format.tree import STATE
from chockstone.checkpoints.reading.archive import Archive, ArchiveTensor
from chockstone.checkpoints.restoring.destinations import RestoreDestinations

_CHUNK_BYTES: Final = 8 * 1024**2  # a whole number of elements of any type
_FLOATS: Final = {"F16": "<f2", "BF16": "", "F32": "<f4", "F64": "<f8"}  # numpy has no name for bf16


@dataclass(frozen=True, slots=True)
class DiffExtent:
    """How much of a tensor or file of unchanged type differs. The elements of a file are its bytes."""

    elements: int
    of_elements: int
    differing_bytes: int
    of_bytes: int
    max_difference: float | None = None  # of floats; nan where a nan came or went


@dataclass(frozen=True, slots=True)
class Change:
    what: Literal["tensor", "value", "file"]
    path: str
    kind: Literal["added", "removed", "retyped", "changed"]
    before: str | None  # None: was not there
    after: str | None
    extent: DiffExtent | None = None


@dataclass(frozen=True, slots=True)
class Difference:
    changes: tuple[Change, ...]  # in the order of the state; what was added comes last
    same: Mapping[str, int]  # how many tensors, values and files did not change

    @property
    def is_empty(self) -> bool:
        return not self.changes


def compare(before: Archive, after: Archive, *, on_bytes: Callable[[int], None] = lambda _: None) -> Difference:
    """Every tensor, value and file that differs. ``on_bytes`` counts bytes of ``before``.

    Bytes are verified as each archive's policy asks; damage is raised, not reported as a change.
    """
    old, new = _Contents(before), _Contents(after)
    changes: list[Change] = []
    same = {
        "tensors": _compare_tensors(old, new, changes, on_bytes),
        "values": _compare_values(old.nodes, new.nodes, changes),
        "files": _compare_files(old, new, changes, on_bytes),
    }
    return Difference(tuple(changes), same)


@dataclass(frozen=True, slots=True)
class _PlacedTensor:
    """A tensor under the path it has in the state; a tied one is found under each of its paths."""

    path: str
    tensor: ArchiveTensor
    dtype: Dtype
    shape: tuple[int, ...]
    form: str

    @property
    def description(self) -> str:
        form = "" if self.form == "torch" else f"{self.form} "
        return f"{form}{self.dtype.name}{list(self.shape)}"


class _Contents:
    """What one archive holds, by where it stands in the state."""

    def __init__(self, archive: Archive) -> None:
        self.window = _Window(archive)
        self.tensors: dict[Place, _PlacedTensor] = {}
        self.nodes: dict[Place, tuple[str, Node]] = {}
        places = RestoreDestinations(archive)
        for path, place, node in walk(outline(archive.state()) if STATE in archive.members else ()):
            if node.reference is None:
                self.nodes[place] = (path, node)
                continue
            tensor, dtype, shape = places.find(node.reference)
            self.tensors[place] = _PlacedTensor(path, tensor, dtype, shape, node.reference.form)
        spoken_of = {(found.tensor.member, found.tensor.entry.key) for found in self.tensors.values()}
        for tensor in archive.all_tensors():
            if (tensor.member, tensor.entry.key) not in spoken_of:
                entry = tensor.entry
                found = _PlacedTensor(tensor.path, tensor, BY_NAME[entry.dtype], entry.shape, "torch")
                self.tensors[tensor.member, entry.key] = found
        self.files: dict[str, Member] = {
            name: member for name, member in archive.members.items() if name != STATE and not name.endswith(SUFFIX)
        }


class _Window:
    """Reads of whole blocks, the last one kept: neighbouring tensors share it."""

    def __init__(self, archive: Archive) -> None:
        self._archive = archive
        self._start = self._end = 0
        self._memory = allocate(_CHUNK_BYTES + 2 * archive.layout.block_bytes)

    def read(self, offset: int, size: int) -> Bytes:
        """Verified bytes, at most a chunk of them; valid until the next read."""
        if not (self._start <= offset and offset + size <= self._end):
            self._load(offset, size)
        return self._memory[offset - self._start : offset + size - self._start]

    def _load(self, offset: int, size: int) -> None:
        layout = self._archive.layout
        first = (offset - layout.body_offset) // layout.block_bytes
        last = (offset + size - 1 - layout.body_offset) // layout.block_bytes
        start, end = layout.block_range(first)[0], layout.block_range(last)[1]
        self._start = self._end = 0  # nothing is valid while this may raise
        room = min(round_up(end - start, PAGE), layout.size - start)
        memory = memoryview(self._memory.data)
        self._archive.read_into(start, memory[:room])
        for index in range(first, last + 1):
            if self._archive.should_verify(index):
                block_start, block_end = layout.block_range(index)
                self._archive.check_block(index, memory[block_start - start : block_end - start])
        self._start, self._end = start, end


def _compare_tensors(old: _Contents, new: _Contents, changes: list[Change], on_bytes: Callable[[int], None]) -> int:
    pairs = [(found, new.tensors[place]) for place, found in old.tensors.items() if place in new.tensors]
    alike = [(a, b) for a, b in pairs if a.description == b.description]
    extents: dict[tuple[int, int, int], DiffExtent] = {}
    for a, b in sorted(alike, key=lambda pair: pair[0].tensor.offset):
        key = (a.tensor.offset, b.tensor.offset, a.tensor.entry.size)
        if key not in extents:  # tied tensors are compared once
            extents[key] = _measure(old.window, new.window, *key, a.dtype, on_bytes)
    same = 0
    for place, a in old.tensors.items():
        b_or_none = new.tensors.get(place)
        if b_or_none is None:
            changes.append(Change("tensor", a.path, "removed", a.description, None))
        elif a.description != b_or_none.description:
            changes.append(Change("tensor", a.path, "retyped", a.description, b_or_none.description))
        elif (extent := extents[a.tensor.offset, b_or_none.tensor.offset, a.tensor.entry.size]).differing_bytes:
            changes.append(Change("tensor", a.path, "changed", a.description, a.description, extent))
        else:
            same += 1
    changes += [
        Change("tensor", b.path, "added", None, b.description)
        for place, b in new.tensors.items()
        if place not in old.tensors
    ]
    return same


def _compare_values(
    old: Mapping[Place, tuple[str, Node]], new: Mapping[Place, tuple[str, Node]], changes: list[Change]
) -> int:
    same = 0
    for place, (path, a) in old.items():
        _, b = new.get(place, ("", None))
        if b is None:
            if not a.is_inner:
                changes.append(Change("value", path, "removed", _describe(a), None))
        elif a.kind != b.kind:
            changes.append(Change("value", path, "retyped", _describe(a), _describe(b)))
        elif a.text != b.text:
            changes.append(Change("value", path, "changed", _describe(a), _describe(b)))
        else:
            same += not a.is_inner
    changes += [
        Change("value", path, "added", None, _describe(b))
        for place, (path, b) in new.items()
        if place not in old and not b.is_inner
    ]
    return same


def _describe(node: Node) -> str:
    return node.text or node.kind


def _compare_files(old: _Contents, new: _Contents, changes: list[Change], on_bytes: Callable[[int], None]) -> int:
    same = 0
    for name, a in old.files.items():
        b = new.files.get(name)
        if b is None:
            changes.append(Change("file", name, "removed", f"{a.size} bytes", None))
        elif a.size != b.size:
            changes.append(Change("file", name, "changed", f"{a.size} bytes", f"{b.size} bytes"))
        else:
            extent = _measure(old.window, new.window, a.offset, b.offset, a.size, BY_NAME["U8"], on_bytes)
            if extent.differing_bytes:
                changes.append(Change("file", name, "changed", f"{a.size} bytes", f"{b.size} bytes", extent))
            else:
                same += 1
    changes += [
        Change("file", name, "added", None, f"{b.size} bytes") for name, b in new.files.items() if name not in old.files
    ]
    return same


@dataclass(slots=True)
class _DiffCounts:
    elements: int = 0
    differing_bytes: int = 0
    differences: list[float] = field(default_factory=list)


def _measure(
    old: _Window, new: _Window, offset: int, new_offset: int, size: int, dtype: Dtype, on_bytes: Callable[[int], None]
) -> DiffExtent:
    counts = _DiffCounts()
    for start, length in _spans(size):
        _count(old.read(offset + start, length), new.read(new_offset + start, length), dtype, counts)
        on_bytes(length)
    largest = float(np.max(counts.differences)) if counts.differences else None
    return DiffExtent(counts.elements, size // dtype.itemsize, counts.differing_bytes, size, largest)


def _spans(size: int) -> Iterator[tuple[int, int]]:
    for start in range(0, size, _CHUNK_BYTES):
        yield start, min(_CHUNK_BYTES, size - start)


def _count(a: Bytes, b: Bytes, dtype: Dtype, counts: _DiffCounts) -> None:
    word = min(dtype.itemsize, 8)
    differing = a.view(f"<u{word}") != b.view(f"<u{word}")
    if not differing.any():
        return
    if dtype.itemsize > word:
        differing = differing.reshape(-1, dtype.itemsize // word).any(axis=1)
    x, y = a.reshape(-1, dtype.itemsize)[differing], b.reshape(-1, dtype.itemsize)[differing]
    counts.elements += len(x)
    counts.differing_bytes += int(np.count_nonzero(x != y))
    if dtype.name in _FLOATS:
        with np.errstate(invalid="ignore"):
            distances = np.abs(_floats(x, dtype.name) - _floats(y, dtype.name))
        counts.differences.append(float(distances.max()))


def _floats(elements: Bytes, dtype_name: str) -> np.ndarray[Any, np.dtype[np.float64]]:
    if dtype_name == "BF16":  # the upper half of a float32
        return (elements.view("<u2").astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return elements.view(_FLOATS[dtype_name]).astype(np.float64)
