"""Shares: the bytes that one rank writes, from its snapshot and from what other ranks sent.

Whole pages of tensor data are written straight from the snapshot. Pages in which tensors of several ranks, headers and
padding meet are assembled in buffers.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np

from chockstone.checkpoints.errors import SaveFailed
from chockstone.checkpoints.format.byte_runs import ByteCut, ByteRun, ByteRuns, Numbers, spread
from chockstone.checkpoints.format.host_memory import Bytes
from chockstone.checkpoints.format.layout import Layout
from chockstone.checkpoints.format.tar import PAGE, render_headers, round_up
from chockstone.checkpoints.ranks.buffer_pool import BufferPool
from chockstone.checkpoints.ranks.ownership import Chunk
from chockstone.checkpoints.saving.snapshot import Section, Snapshot

_DIRECT_BYTES: Final = 64 * 1024  # less is gathered: a copy costs less than a write of its own


class FileExtent(NamedTuple):
    offset: int  # in the file
    content: memoryview
    buffer: Bytes | None = None  # of the pool, where it was assembled


class Received(NamedTuple):
    """The bytes that another rank sent: all that it has of one chunk, in order."""

    runs: ByteRuns
    position: int  # of the first of these bytes in all that it has
    content: Bytes


def data_runs(layout: Layout, sections: Sequence[Section]) -> ByteRuns:
    """All tensor bytes of the file."""
    places = _places(layout, sections)
    return ByteRuns.of(
        ByteRun(place, section.size, section.size, 1)
        for place, section in zip(places, sections, strict=True)
        if section.size
    )


def file_runs(runs: ByteRuns, layout: Layout, sections: Sequence[Section]) -> ByteRuns:
    """Runs of the arrangement, as offsets in the file."""
    return runs.moved(_distances(runs.rows[:, 0], layout, sections))


def _distances(offsets: Numbers, layout: Layout, sections: Sequence[Section]) -> Numbers:
    """How far offsets in the arrangement are from those in the file."""
    if not sections:
        return np.zeros_like(offsets)
    starts = np.array([section.start for section in sections], dtype=np.int64)
    distances: Numbers = (_places(layout, sections) - starts)[np.searchsorted(starts, offsets, side="right") - 1]
    return distances


def _places(layout: Layout, sections: Sequence[Section]) -> Numbers:
    """Where the data of each section stands in the file."""
    offsets = {member.name: member.offset for member in layout.members}
    return np.array([offsets[section.name] + len(section.header) for section in sections], dtype=np.int64)


class RankShare:
    def __init__(
        self,
        layout: Layout,
        snapshot: Snapshot,
        runs: ByteRuns,
        buffers: BufferPool,
        *,
        mtime: int,
        files: Mapping[str, bytes] | None = None,
    ) -> None:
        """``runs``: what this rank has, as offsets in the file. ``files``: the small members, on rank 0."""
        assert snapshot.copy_plan is not None
        self._buffers = buffers
        self._layout = layout
        self._runs = runs
        self._memory = snapshot.memory
        self._copy_plan = snapshot.copy_plan
        self._sections = snapshot.sections
        self._data = data_runs(layout, snapshot.sections)
        self._fixed: list[tuple[int, bytes]] = []
        headers = {section.name: section.header for section in snapshot.sections}
        for member in layout.members:
            tar = render_headers(member.name, size=member.size, header_offset=member.header_offset, mtime=mtime)
            content = headers.get(member.name) if files is None else headers.get(member.name, files.get(member.name))
            self._fixed += [(member.header_offset, tar), (member.offset, content or b"")]
        self._fixed_starts = [start for start, _ in self._fixed]

    def bytes_between(self, start: int, end: int) -> list[Bytes]:
        """All bytes that this rank has from ``start`` to ``end``, in order, to send them."""
        return [self._of(cut) for cut in self._runs.within(start, end)]

    def extents(self, chunk: Chunk, received: Sequence[Received] = ()) -> list[FileExtent]:
        """All bytes of the chunk, in order. Extents begin on pages, and end on pages before the end of the body.

        They do not refer to ``received``. Call ``release`` after writing them. Raises SaveFailed unless the ranks
        together have every element of a tensor exactly once.
        """
        cuts = list(self._runs.within(chunk.start, chunk.needed_to))
        others = [cut for one in received for cut in one.runs.within(chunk.start, chunk.needed_to)]
        self._check(chunk, cuts, others)
        extents: list[FileExtent] = []
        position = chunk.start
        for cut in cuts:
            low, high = round_up(cut.run.start, PAGE), (cut.run.start + cut.run.length) // PAGE * PAGE
            if cut.run.times > 1 or high - low < _DIRECT_BYTES:
                continue
            content = self._of(cut)[low - cut.run.start : high - cut.run.start]
            if content.__array_interface__["data"][0] % PAGE:
                continue  # cannot be written from there
            if position < low:
                extents.append(self._gather(position, low, received))
            extents.append(FileExtent(low, content.data))
            position = high
        if position < chunk.needed_to:
            extents.append(self._gather(position, chunk.needed_to, received))
        return extents

    def release(self, extents: Iterable[FileExtent]) -> None:
        for extent in extents:
            if extent.buffer is not None:
                self._buffers.release(extent.buffer)

    def _of(self, cut: ByteCut) -> Bytes:
        """The bytes of a cut, which are contiguous in memory."""
        index, within = self._runs.locate(cut.position)
        place = self._copy_plan.places[index] + within
        return self._memory[place : place + cut.run.size]

    def _gather(self, start: int, end: int, received: Sequence[Received]) -> FileExtent:
        buffer = self._buffers.acquire(end - start)
        memory = buffer[: end - start]
        memory[:] = 0  # between members there is nothing
        first = max(bisect_right(self._fixed_starts, start) - 1, 0)
        for offset, content in self._fixed[first:]:
            if offset >= end:
                break
            low, high = max(offset, start), min(offset + len(content), end)
            if low < high:
                memory[low - start : high - start] = np.frombuffer(content, np.uint8)[low - offset : high - offset]
        for cut in self._runs.within(start, end):
            _put(memory, start, cut.run, self._of(cut))
        for one in received:
            for cut in one.runs.within(start, end):
                place = cut.position - one.position
                _put(memory, start, cut.run, one.content[place : place + cut.run.size])
        return FileExtent(start, memory.data, buffer)

    def _check(self, chunk: Chunk, cuts: Sequence[ByteCut], others: Sequence[ByteCut]) -> None:
        wanted = self._data.before(np.array([chunk.start, chunk.needed_to]))
        starts, lengths = spread([*cuts, *others]) if others else (np.empty(0, np.int64), np.empty(0, np.int64))
        order = np.argsort(starts, kind="stable")
        ends = (starts + lengths)[order]
        overlaps = np.flatnonzero(ends[:-1] > starts[order][1:])
        if len(overlaps):
            name = self._name(int(ends[overlaps[0]]) - 1)
            raise SaveFailed(
                f"{name}: two ranks have the same elements of it. What several have is either a plain tensor, which "
                "all have, or a DTensor that is replicated on a mesh of theirs"
            )
        if sum(cut.run.size for cut in (*cuts, *others)) != wanted[1] - wanted[0]:
            raise SaveFailed(f"{self._name(self._hole(chunk, [*cuts, *others]))}: some of its elements no rank has")

    def _hole(self, chunk: Chunk, cuts: Iterable[ByteCut]) -> int:
        """The first tensor byte of the chunk that no rank has."""
        starts, lengths = spread(list(cuts))
        has = {int(start): int(start + length) for start, length in zip(starts, lengths, strict=True)}
        for cut in self._data.within(chunk.start, chunk.needed_to):
            position, end = cut.run.start, cut.run.start + cut.run.size
            while position in has and position < end:
                position = has[position]
            if position < end:
                return position
        return chunk.start

    def _name(self, offset: int) -> str:
        """Of the tensor that a byte of the file belongs to."""
        places = np.array(self._copy_plan.leaf_places, dtype=np.int64)
        starts = places + _distances(places, self._layout, self._sections)
        sizes = [math.prod(shape) for _, _, _, shape, _ in self._copy_plan.structure]
        _, index = max((int(start), index) for index, start in enumerate(starts) if start <= offset and sizes[index])
        group, key, *_ = self._copy_plan.structure[index]
        return f"{group}.{key}"


def _put(memory: Bytes, base: int, run: ByteRun, content: Bytes) -> None:
    start = run.start - base
    if run.times == 1:
        memory[start : start + run.length] = content
        return
    shape, strides = (run.times, run.length), (run.stride, 1)
    np.lib.stride_tricks.as_strided(memory[start:], shape=shape, strides=strides)[:] = content.reshape(shape)


def cut_extents(extents: Iterable[FileExtent], start: int, end: int) -> Iterator[tuple[int, memoryview]]:
    """What of the extents lies from ``start`` to ``end``, with its offset."""
    for offset, content, _ in extents:
        low, high = max(offset, start), min(offset + len(content), end)
        if low < high:
            yield low, content[low - offset : high - offset]
