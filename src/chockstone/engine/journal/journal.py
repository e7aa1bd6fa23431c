"""Journals: records that are durable before a client is answered, and deleted when they are not needed any more.

A journal is a directory of segments, files that only grow. Records have numbers without gaps, a
head of JSON and a body of bytes. The newest segment is never deleted, so that numbers are never used
again. The journal does not know what its records mean.
"""

from __future__ import annotations

import asyncio
import bisect
import logging
import os
import secrets
import shutil
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import orjson

from chockstone.checkpoints.stores.posix import fsync_directory
from chockstone.engine.journal.format import (
    RECORD_BYTES,
    SEGMENT_BYTES,
    JournalDamaged,
    JournalError,
    JournalTooNew,
    JournalUnavailable,
    segment_name,
)
from chockstone.engine.journal.mark_file import JournalMark, MarkFile
from chockstone.engine.journal.scan import Record, RecordPosition, Scan, read_body, scan_all, segments_in
from chockstone.engine.journal.segment_file import JournalEntry, SegmentFile
from chockstone.engine.journal.writer import GIVE_UP_SECONDS, JournalWriter

__all__ = [
    "Appended",
    "Journal",
    "JournalDamaged",
    "JournalError",
    "JournalTooNew",
    "JournalUnavailable",
    "JournalWriter",
    "Record",
]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Appended:
    record: Record
    durable: asyncio.Future[None]
    """Done when it is as durable as the writer makes things; JournalError if it never will be. Shield it."""


@dataclass(slots=True, eq=False)
class _Segment:
    path: Path
    first: int
    size_bytes: int
    is_there: bool  # a record of it is durable
    held: set[int] = field(default_factory=set)
    file: SegmentFile | None = None  # None: found at opening, never written to again


class Journal:
    """One journal, used by one event loop. ``open`` makes it."""

    def __init__(
        self, directory: Path, writer: JournalWriter, *, segment_bytes: int, mark_file: MarkFile | None = None
    ) -> None:
        self.directory = directory
        self._mark_file = mark_file
        self.records: list[Record] = []
        self.next_sequence = 0
        self._writer = writer
        self._segment_bytes = segment_bytes
        self._segments: list[_Segment] = []
        self._head: Mapping[str, Any] | None = None  # of the run or whatever it is; each segment starts with it
        self._waiting: dict[int, bytes] = {}  # bodies on their way to the disk
        self._idle = asyncio.Event()
        self._idle.set()
        self._is_closed = False
        self._is_skipping = False  # the next segment does not begin where the last one ends

    @classmethod
    async def open(
        cls,
        directory: Path,
        writer: JournalWriter,
        *,
        segment_bytes: int = 64 << 20,
        mark_file: MarkFile | None = None,
    ) -> Journal:
        """Read and check what is there; a torn tail of the newest segment is cut off. The directory is made by the
        first append. Raises JournalTooNew with nothing touched, JournalDamaged, JournalUnavailable.

        ``records`` are those found; those that were appended as held are so again. The caller may clear the list.
        """
        journal = cls(directory, writer, segment_bytes=segment_bytes, mark_file=mark_file)
        for scan in await asyncio.to_thread(_scan_and_cut, directory):
            journal._take(scan)
        return journal

    @property
    def size_bytes(self) -> int:
        """Of all segments, with what is on its way."""
        return sum(segment.size_bytes for segment in self._segments)

    def append(
        self,
        head: Mapping[str, Any],
        body: bytes = b"",
        *,
        held: bool = True,
        mark: Callable[[int], JournalMark] | None = None,
    ) -> Appended:
        """Add a record behind all others, and return before it is written. Raises JournalError once closed.

        A record of kind "head" is never held; the last one is repeated at the start of each later segment.
        ``mark`` makes what the mark file holds, from the record's number, once the record is durable.
        """
        if self._is_closed:
            raise JournalError(f"journal {str(self.directory)!r} is closed")
        encoded = orjson.dumps(head)
        size = RECORD_BYTES + len(encoded) + len(body)
        segment = self._segments[-1] if self._segments else None
        if segment is None or segment.file is None or segment.size_bytes + size > self._segment_bytes:
            segment = self._begin_segment()
            if self._head is not None and head.get("kind") != "head":
                self._add(segment, self._head, orjson.dumps(self._head), b"", held=False)
        return self._add(segment, head, encoded, body, held=held, mark=mark)

    def skip_to(self, sequence: int) -> None:
        """Number what is appended next from here on: earlier numbers were used, by records that are lost."""
        assert sequence >= self.next_sequence
        assert all(segment.file is None for segment in self._segments)
        self.next_sequence = sequence
        self._is_skipping = True

    def rotate(self, head: Mapping[str, Any]) -> None:
        """Start a new segment with this head, of kind "head". Segments with nothing held go once it is durable."""
        if self._is_closed:
            raise JournalError(f"journal {str(self.directory)!r} is closed")
        head = {**head, "kind": "head"}
        self._add(self._begin_segment(), head, orjson.dumps(head), b"", held=False)

    async def read(self, record: Record) -> bytes:
        """The record's body, checked. Raises JournalDamaged, also when the record was freed and is gone."""
        if (waiting := self._waiting.get(record.sequence)) is not None:
            return waiting
        return await asyncio.to_thread(read_body, record)

    def free(self, sequences: Iterable[int]) -> None:
        """These are not needed any more. Segments with nothing held are deleted, but for the newest."""
        if isinstance(sequences, range):
            for segment in self._segments:
                segment.held = {sequence for sequence in segment.held if sequence not in sequences}
        else:
            for sequence in sequences:
                at = bisect.bisect_right(self._segments, sequence, key=lambda segment: segment.first) - 1
                if at >= 0:
                    self._segments[at].held.discard(sequence)
        self._delete_unneeded()

    async def close(self) -> None:
        """What was appended is written first; in trouble it is given up after a second. Idempotent."""
        self._is_closed = True
        while not self._idle.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(self._idle.wait(), GIVE_UP_SECONDS)
            if self._writer.trouble is not None:
                break
        why = f"journal {str(self.directory)!r} was closed before this was written: {self._writer.trouble}"
        await self._writer.do(partial(self._writer.abandon, self.directory, why))
        if self._mark_file is not None:
            await self._writer.do(self._mark_file.close)
        self._segments.clear()  # another Journal may have them now

    async def remove(self) -> None:
        """Delete it with all that is in it and all that waits to be. Idempotent. Raises OSError."""
        self._is_closed = True
        self._segments.clear()
        await self._writer.do(self._remove)

    def _take(self, scan: Scan) -> None:
        held = {record.sequence for record in scan.records if record._is_held}
        self._segments.append(_Segment(scan.path, scan.first, scan.size, bool(scan.records), held))
        self.records += scan.records
        self.next_sequence = scan.next_sequence
        for record in scan.records:
            if record.damage is None and record.head.get("kind") == "head":
                self._head = record.head

    def _begin_segment(self) -> _Segment:
        last = self._segments[-1] if self._segments else None
        if last is not None and last.first == self.next_sequence:  # found without a record in it
            self._segments.pop()
            last = self._segments[-1] if self._segments else None
        path = self.directory / segment_name(self.next_sequence)
        file = SegmentFile(
            path,
            first=self.next_sequence,
            previous=last.first if last and not self._is_skipping else None,
            mark=secrets.randbits(64) or 1,
            replaces=last.file if last else None,
        )
        segment = _Segment(path, self.next_sequence, SEGMENT_BYTES, is_there=False, file=file)
        self._segments.append(segment)
        self._is_skipping = False
        return segment

    def _add(
        self,
        segment: _Segment,
        head: Mapping[str, Any],
        encoded: bytes,
        body: bytes,
        *,
        held: bool,
        mark: Callable[[int], JournalMark] | None = None,
    ) -> Appended:
        assert segment.file is not None
        head = dict(head)
        held = held and head.get("kind") != "head"
        sequence, offset = self.next_sequence, segment.size_bytes
        end = offset + RECORD_BYTES + len(encoded) + len(body)
        durable: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def on_end(error: Exception | None) -> None:
            self._ended(sequence, segment, error)
            if durable.done():  # cancelled with the one who waited for it
                return
            if error is None:
                durable.set_result(None)
            else:
                durable.set_exception(error)
                durable.exception()  # marks it as retrieved

        new_mark = None if mark is None else mark(sequence)
        mark_file = None if new_mark is None else self._mark_file
        entry = JournalEntry(segment.file, offset, sequence, encoded, body, held, end, on_end, new_mark, mark_file)
        self._writer.submit(entry)
        self.next_sequence += 1
        segment.size_bytes = end
        self._waiting[sequence] = body
        self._idle.clear()
        if head.get("kind") == "head":
            self._head = head
        if held:
            segment.held.add(sequence)
        return Appended(
            Record(sequence, head, len(body), None, _place=RecordPosition(segment.path, offset), _is_held=held), durable
        )

    def _ended(self, sequence: int, segment: _Segment, error: Exception | None) -> None:
        del self._waiting[sequence]
        if not self._waiting:
            self._idle.set()
        if error is None and not segment.is_there:
            segment.is_there = True
            self._delete_unneeded()

    def _delete_unneeded(self) -> None:
        """Only what is older than a segment with a durable record: the newest number must never be forgotten."""
        newest = max((at for at, segment in enumerate(self._segments) if segment.is_there), default=0)
        for segment in [segment for segment in self._segments[:newest] if not segment.held]:
            self._segments.remove(segment)
            self._writer.soon(partial(os.unlink, segment.path))

    def _remove(self) -> None:
        """Oldest first: what a crash leaves is the end of the journal, as if it had been trimmed."""
        self._writer.abandon(self.directory, f"journal {str(self.directory)!r} was removed")
        if self._mark_file is not None:
            self._mark_file.close()
            with suppress(FileNotFoundError):
                os.unlink(self._mark_file.path)
        for path in segments_in(self.directory):
            os.unlink(path)
        with suppress(FileNotFoundError):
            shutil.rmtree(self.directory)
            if self._writer.synced:
                fsync_directory(self.directory.parent)


def _scan_and_cut(directory: Path) -> list[Scan]:
    try:
        scans = scan_all(directory)
        if scans and scans[-1].end < scans[-1].size and scans[-1].is_torn:
            newest = scans[-1]
            log.warning("torn tail cut off segment=%s bytes=%d", newest.path, newest.size - newest.end)
            os.truncate(newest.path, newest.end)
            newest.size = newest.end
    except OSError as error:
        raise JournalUnavailable(
            f"journal {str(directory)!r} cannot be read: {error.strerror or repr(error)}"
        ) from error
    for scan in scans:
        for record in scan.records:
            if record.damage is not None:
                log.error("journal damaged segment=%s sequence=%d damage=%s", scan.path, record.sequence, record.damage)
    return scans
