"""Images: an archive as page-aligned extents of memory, in file order.

Tensor data stays where the snapshot puts it; headers, small members and the odd bytes at the end of
a section are gathered into buffers of their own, and a large file is copied once, onto pages. An image may be made, and
its first pieces written, while the snapshot is still being copied.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from chockstone.checkpoints.format.host_memory import Bytes, allocate
from chockstone.checkpoints.format.layout import Layout
from chockstone.checkpoints.format.manifest import Manifest, render_head, render_tail
from chockstone.checkpoints.format.tar import BLOCK, PAGE, render_headers, round_up
from chockstone.checkpoints.saving.snapshot import Snapshot

_LARGE_BYTES: Final = 1024**2
_NOTHING: Final = np.empty(0, dtype=np.uint8)


@dataclass(frozen=True, slots=True)
class _Extent:
    """Bytes that follow each other in the file and in memory."""

    start: int  # in the file
    memory: Bytes
    copied_from: int | None = None  # where it begins in the snapshot, if it is a part of it
    remainder: tuple[int, int] = (0, 0)  # the bytes of the snapshot that belong at its start, once they are copied


class Image:
    """All bytes of one archive except head and tail, which need the digests of the rest."""

    def __init__(self, manifest: Manifest, layout: Layout, files: Mapping[str, bytes], snapshot: Snapshot) -> None:
        self.manifest = manifest
        self.layout = layout
        self.seal = ""  # set by ``head_and_tail``
        self._snapshot = snapshot
        self._extents: list[_Extent] = []
        sections = {section.name: section for section in snapshot.sections}
        gap = bytearray()
        gap_start = layout.body_offset
        remainder = (0, 0)
        for member in layout.members:
            gap += render_headers(
                member.name, size=member.size, header_offset=member.header_offset, mtime=manifest.mtime
            )
            section = sections.get(member.name)
            first: int | None = None
            if section is not None:
                gap += section.header
                first = section.start
                data = snapshot.memory[section.start : section.start + section.size]
            elif member.size >= _LARGE_BYTES:
                data = _aligned(files[member.name])[: member.size]
            else:
                gap += files[member.name]
                data = _NOTHING
            if len(data):
                self._add(_Extent(gap_start, _aligned(gap), remainder=remainder))
                whole = len(data) // PAGE * PAGE
                self._add(_Extent(gap_start + len(gap), data[:whole], first))
                gap_start += len(gap) + whole
                remainder = (0, 0) if first is None else (first + whole, first + len(data))
                gap = bytearray(len(data) - whole) if first is not None else bytearray(data[whole:].tobytes())
            gap += bytes(-len(gap) % BLOCK)
        self.tail_start = gap_start  # a page; from here on the bytes wait for COMMIT
        self._gap = _Extent(gap_start, _aligned(gap), remainder=remainder)
        self._gap_bytes = len(gap)
        self._add(self._gap)
        self._starts = [extent.start for extent in self._extents]

    def _add(self, extent: _Extent) -> None:
        if len(extent.memory):
            self._extents.append(extent)

    def pieces(self, start: int, end: int) -> Iterator[tuple[int, memoryview]]:
        """(offset, bytes) pairs that together are the body from ``start`` to ``end``. Waits until they are copied."""
        index = bisect_right(self._starts, start) - 1
        while start < end:
            extent = self._extents[index]
            first, last = start - extent.start, min(end - extent.start, len(extent.memory))
            self._complete(extent, last)
            yield start, extent.memory[first:last].data
            start = extent.start + last
            index += 1

    def _complete(self, extent: _Extent, last: int) -> None:
        """Wait for the bytes of the extent before ``last`` that come from the snapshot."""
        if extent.copied_from is not None:
            self._snapshot.progress.wait_for(extent.copied_from + last)
        first, end = extent.remainder
        if first < end:
            self._snapshot.progress.wait_for(end)
            extent.memory[: end - first] = self._snapshot.memory[first:end]

    def head_and_tail(self, digests: bytes) -> tuple[Bytes, Bytes]:
        """The bytes before the body, and those from ``tail_start`` to the end of the file."""
        payload = self.manifest.encode(digests, self.layout)
        self.seal = hashlib.sha256(payload).hexdigest()
        self._complete(self._gap, 0)
        gap = self._gap.memory[: self._gap_bytes].tobytes()
        return render_ends(payload, self.layout, gap=gap, mtime=self.manifest.mtime)


def render_ends(payload: bytes, layout: Layout, *, gap: bytes, mtime: int) -> tuple[Bytes, Bytes]:
    """Head and tail on pages. The tail begins with ``gap``: what of the body no longer fills a page."""
    tail = gap + render_tail(payload, layout, mtime=mtime)
    return _aligned(render_head(payload, mtime=mtime)), _aligned(tail)


def _aligned(content: bytes | bytearray) -> Bytes:
    memory = allocate(len(content))[: round_up(len(content), PAGE)]
    memory[: len(content)] = memoryview(content)
    return memory
