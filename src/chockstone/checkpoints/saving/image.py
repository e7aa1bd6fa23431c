"""Images: an archive as page-aligned extents of memory, in file order.

Tensor data stays where the snapshot put it; headers, small members and the odd bytes at the end of
a section are gathered into buffers of their own, and a large file is copied once, onto pages.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from typing import Final

import numpy as np

from chockstone.checkpoints.format.host_memory import Bytes, allocate
from chockstone.checkpoints.format.layout import Layout
from chockstone.checkpoints.format.manifest import Manifest, render_head, render_tail
from chockstone.checkpoints.format.tar import BLOCK, PAGE, render_headers, round_up
from chockstone.checkpoints.saving.snapshot import Snapshot

_LARGE_BYTES: Final = 1024**2
_NOTHING: Final = np.empty(0, dtype=np.uint8)


class Image:
    """All bytes of one archive except head and tail, which need the digests of the rest."""

    def __init__(self, manifest: Manifest, layout: Layout, files: Mapping[str, bytes], snapshot: Snapshot) -> None:
        self.manifest = manifest
        self.layout = layout
        self.seal = ""  # set by ``head_and_tail``
        self._starts: list[int] = []
        self._extents: list[Bytes] = []
        sections = {section.name: section for section in snapshot.sections}
        gap = bytearray()
        gap_start = layout.body_offset
        for member in layout.members:
            gap += render_headers(
                member.name, size=member.size, header_offset=member.header_offset, mtime=manifest.mtime
            )
            section = sections.get(member.name)
            if section is not None:
                gap += section.header
                data = snapshot.memory[section.start : section.start + section.size]
            elif member.size >= _LARGE_BYTES:
                data = _aligned(files[member.name])[: member.size]
            else:
                gap += files[member.name]
                data = _NOTHING
            if len(data):
                self._add(gap_start, _aligned(gap))
                whole = len(data) // PAGE * PAGE
                self._add(gap_start + len(gap), data[:whole])
                gap_start += len(gap) + whole
                gap = bytearray(data[whole:].tobytes())
            gap += bytes(-len(gap) % BLOCK)
        self.tail_start = gap_start  # a page; from here on the bytes wait for COMMIT
        self._gap = bytes(gap)
        self._add(gap_start, _aligned(gap))

    def _add(self, start: int, extent: Bytes) -> None:
        if len(extent):
            self._starts.append(start)
            self._extents.append(extent)

    def pieces(self, start: int, end: int) -> Iterator[tuple[int, memoryview]]:
        """(offset, bytes) pairs that together are the body from ``start`` to ``end``."""
        index = bisect_right(self._starts, start) - 1
        while start < end:
            extent_start, extent = self._starts[index], self._extents[index]
            stop = min(end, extent_start + len(extent))
            yield start, extent[start - extent_start : stop - extent_start].data
            start = stop
            index += 1

    def head_and_tail(self, digests: bytes) -> tuple[Bytes, Bytes]:
        """The bytes before the body, and those from ``tail_start`` to the end of the file."""
        payload = self.manifest.encode(digests, self.layout)
        self.seal = hashlib.sha256(payload).hexdigest()
        return render_ends(payload, self.layout, gap=self._gap, mtime=self.manifest.mtime)


def render_ends(payload: bytes, layout: Layout, *, gap: bytes, mtime: int) -> tuple[Bytes, Bytes]:
    """Head and tail on pages. The tail begins with ``gap``: what of the body no longer fills a page."""
    tail = gap + render_tail(payload, layout, mtime=mtime)
    return _aligned(render_head(payload, mtime=mtime)), _aligned(tail)


def _aligned(content: bytes | bytearray) -> Bytes:
    memory = allocate(len(content))[: round_up(len(content), PAGE)]
    memory[: len(content)] = memoryview(content)
    return memory
