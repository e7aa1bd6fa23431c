"""The file that a journal is being written to. Only the writer's thread calls what is here."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic

from chockstone.checkpoints.stores.posix import fsync_directory
from chockstone.engine.journal.format import SEGMENT_BYTES, JournalError, pack_record, pack_segment
from chockstone.engine.journal.mark_file import JournalMark, MarkFile


@dataclass(slots=True, eq=False)
class SegmentFile:
    """A segment that is being written."""

    path: Path
    first: int
    previous: int | None
    mark: int
    replaces: SegmentFile | None  # the one before it, if that is still open
    size: int = 0  # of what counts as durable
    _descriptor: int | None = None
    _new_names_in: list[Path] = field(default_factory=list)  # directories to sync

    def put(self, entry: JournalEntry) -> None:
        """Write the record at its place. On an error nothing of it is left."""
        if self._descriptor is None:
            self._create()
        header = pack_record(self.mark, entry.sequence, entry.head, entry.body, is_held=entry.is_held)
        if entry.offset == SEGMENT_BYTES:
            pieces, start = [pack_segment(self.first, self.previous, self.mark), header, entry.head, entry.body], 0
        else:
            pieces, start = [header, entry.head, entry.body], entry.offset
        try:
            self._write_all(start, pieces)
        except BaseException:
            self.cut(start)
            raise

    def sync(self) -> None:
        assert self._descriptor is not None
        os.fdatasync(self._descriptor)
        while self._new_names_in:
            fsync_directory(self._new_names_in[-1])
            self._new_names_in.pop()

    def cut(self, size: int) -> None:
        """Make it this short if that is possible. If not, what is there too much will be written over."""
        if self._descriptor is not None:
            with suppress(OSError):
                os.ftruncate(self._descriptor, size)

    def close(self) -> None:
        if self.replaces is not None:
            self.replaces.close()
            self.replaces = None
        if self._descriptor is not None:
            descriptor, self._descriptor = self._descriptor, None
            with suppress(OSError):  # of a write long done; failures of synced writes have been reported already
                os.close(descriptor)

    def _create(self) -> None:
        self._make_directory(self.path.parent)
        try:
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except FileExistsError:  # begun before a crash: there is no record in it, or the name would be another
            descriptor = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
            if os.fstat(descriptor).st_size > SEGMENT_BYTES:
                os.close(descriptor)
                raise JournalError(
                    f"segment {str(self.path)!r} has records already; nothing is written over them"
                ) from None
        self._descriptor = descriptor
        self._new_names_in.append(self.path.parent)

    def _make_directory(self, path: Path) -> None:
        try:
            os.mkdir(path, 0o700)
        except FileExistsError:
            return
        except FileNotFoundError:
            self._make_directory(path.parent)
            self._make_directory(path)
        else:
            self._new_names_in.append(path.parent)

    def _write_all(self, offset: int, pieces: Sequence[bytes]) -> None:
        assert self._descriptor is not None
        rest = [memoryview(piece) for piece in pieces if piece]
        while rest:
            written = os.pwritev(self._descriptor, rest, offset)
            if written == 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            offset += written
            while rest and written >= len(rest[0]):
                written -= len(rest.pop(0))
            if written:
                rest[0] = rest[0][written:]


@dataclass(frozen=True, slots=True, eq=False)
class JournalEntry:
    """A record on its way to its place in a file."""

    file: SegmentFile
    offset: int
    sequence: int
    head: bytes
    body: bytes
    is_held: bool
    end: int
    on_end: Callable[[Exception | None], None]  # on the loop: durable, or never to be
    mark: JournalMark | None = None  # put into the file below once this is durable, before the client's answer
    mark_file: MarkFile | None = None
    since: float = field(default_factory=monotonic)  # when it was appended
