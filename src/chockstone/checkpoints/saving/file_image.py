"""File images: an archive whose members are files on disk, read chunk by chunk while it is written.

No file is in memory as a whole. Each byte is read once, into a buffer of the thread that writes it, so
digests always fit what is written; and a file that changes meanwhile fails the save.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import threading
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Final, Protocol, Self

from chockstone.checkpoints.errors import CheckpointError
from chockstone.checkpoints.format.host_memory import Bytes, allocate
from chockstone.checkpoints.format.layout import Layout, Member
from chockstone.checkpoints.format.manifest import Manifest
from chockstone.checkpoints.format.tar import BLOCK, PAGE, render_headers
from chockstone.checkpoints.saving.image import render_ends
from chockstone.checkpoints.stores.posix import local_errors

_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class MemberSource(Protocol):
    """The bytes of a member, read when they are written."""

    @property
    def size(self) -> int: ...

    def read_into(self, start: int, target: memoryview) -> None:
        """Fill ``target`` with the bytes from ``start`` on. Called from several threads."""

    def check(self) -> None:
        """Raise if the bytes have changed since the save began. Called before the commit."""


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file to be saved. It must not change from the beginning of the save to its end."""

    path: Path
    size: int
    mtime_ns: int
    inode: tuple[int, int]

    @classmethod
    def look_at(cls, path: Path) -> Self:
        """``CheckpointError`` unless there is a regular file, and no link, of that name."""
        with _explained(path):
            facts = os.lstat(path)
        if stat.S_ISLNK(facts.st_mode):
            raise CheckpointError(f"{str(path)!r} is a link; save what it points to, or the folder it is in")
        if not stat.S_ISREG(facts.st_mode):
            raise CheckpointError(f"{str(path)!r} is not a regular file; only those can be saved")
        return cls(path, facts.st_size, facts.st_mtime_ns, (facts.st_dev, facts.st_ino))

    def read_into(self, start: int, target: memoryview) -> None:
        """Fill ``target`` with bytes of the file; raises if it was replaced."""
        with _explained(self.path):
            try:
                descriptor = os.open(self.path, _READ)
            except OSError as error:
                if error.errno == errno.ELOOP:
                    raise self._changed() from error
                raise
            try:
                self._compare(os.fstat(descriptor))
                while len(target):
                    if not (count := os.preadv(descriptor, [target], start)):
                        raise self._changed()
                    target = target[count:]
                    start += count
                self._compare(os.fstat(descriptor))
            finally:
                os.close(descriptor)

    def check(self) -> None:
        """Raise if the file has changed since the save began."""
        with _explained(self.path):
            self._compare(os.lstat(self.path))

    def _compare(self, facts: os.stat_result) -> None:
        if (facts.st_size, facts.st_mtime_ns, facts.st_dev, facts.st_ino) != (self.size, self.mtime_ns, *self.inode):
            raise self._changed()

    def _changed(self) -> CheckpointError:
        return CheckpointError(
            f"{str(self.path)!r} was changed while it was being saved; nothing was committed. "
            "Finish writing it first, then save it again"
        )


class FileImage:
    """All bytes of one archive of files, of other sources, and of contents that are in memory anyway."""

    def __init__(self, manifest: Manifest, layout: Layout, files: Mapping[str, MemberSource | bytes]) -> None:
        self.manifest = manifest
        self.layout = layout
        self.tail_start = layout.body_end // PAGE * PAGE
        self.seal = ""  # known once the digests are
        self._files = files
        self._header_offsets = [member.header_offset for member in layout.members]
        self._buffers = threading.local()
        self._gap = b""

    def pieces(self, start: int, end: int) -> Iterator[tuple[int, memoryview]]:
        """The body from ``start`` to ``end`` in one piece, which is the thread's until it asks for the next."""
        chunk = self._buffer(end - start)
        for member in self._members(start, end):
            headers = render_headers(
                member.name, size=member.size, header_offset=member.header_offset, mtime=self.manifest.mtime
            )
            _lay(headers, member.header_offset, chunk, start)
            self._read(member, chunk, start)
            _lay(bytes(-member.size % BLOCK), member.end, chunk, start)
        if end == self.layout.body_end:
            self._gap = bytes(chunk[self.tail_start - start :])
        yield start, chunk

    def head_and_tail(self, digests: bytes) -> tuple[Bytes, Bytes]:
        """The bytes before the body, and those from ``tail_start`` to the end of the file."""
        payload = self.manifest.encode(digests, self.layout)
        self.seal = hashlib.sha256(payload).hexdigest()
        return render_ends(payload, self.layout, gap=self._gap, mtime=self.manifest.mtime)

    def check_unchanged(self) -> None:
        """Raise if any of the files has changed since the save began."""
        for content in self._files.values():
            if not isinstance(content, bytes):
                content.check()

    def _members(self, start: int, end: int) -> Iterator[Member]:
        first = bisect_right(self._header_offsets, start) - 1
        return takewhile(lambda member: member.header_offset < end, self.layout.members[first:])

    def _read(self, member: Member, chunk: memoryview, start: int) -> None:
        first, last = _overlap(member.offset, member.size, chunk, start)
        if first >= last:
            return
        content = self._files[member.name]
        target = chunk[first - start : last - start]
        if isinstance(content, bytes):
            target[:] = memoryview(content)[first - member.offset : last - member.offset]
        else:
            content.read_into(first - member.offset, target)

    def _buffer(self, size: int) -> memoryview:
        """Memory of this thread, kept from chunk to chunk: touching fresh pages costs more than reading."""
        memory: Bytes | None = getattr(self._buffers, "memory", None)
        if memory is None or len(memory) < size:
            memory = self._buffers.memory = allocate(size)
        return memory[:size].data


def _lay(content: bytes, offset: int, chunk: memoryview, start: int) -> None:
    """Put into ``chunk``, which begins at ``start``, what lies in it of the content that belongs at ``offset``."""
    first, last = _overlap(offset, len(content), chunk, start)
    if first < last:
        chunk[first - start : last - start] = content[first - offset : last - offset]


def _overlap(offset: int, size: int, chunk: memoryview, start: int) -> tuple[int, int]:
    return max(offset, start), min(offset + size, start + len(chunk))


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    with local_errors(f"cannot read {str(path)!r} to save it"):
        try:
            yield
        except FileNotFoundError:
            raise CheckpointError(f"{str(path)!r} is not there, or no longer; nothing was committed") from None
