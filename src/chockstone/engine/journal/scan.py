"""Reads a journal's segments: checks every record, skips damaged ones, and tells a torn tail from damage.

Nothing here changes a file.
"""

from __future__ import annotations

import itertools
import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import orjson
import xxhash

from chockstone.engine.journal.format import (
    RECORD_BYTES,
    SEGMENT_BYTES,
    VERSION,
    JournalDamaged,
    JournalTooNew,
    RecordHeader,
    digest,
    first_of_name,
    guess_record,
    mark_bytes,
    unpack_record,
    unpack_segment,
)

_CHUNK_BYTES: Final = 1 << 20
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RecordPosition:
    """Where a record starts."""

    path: Path
    offset: int


@dataclass(frozen=True, slots=True)
class Record:
    sequence: int
    head: Mapping[str, Any]  # {} when it is damaged
    body_size: int
    damage: str | None  # why head or body cannot be trusted
    body_digest: int = 0  # XXH3-64; known of records that were found
    _place: RecordPosition | None = None  # None: unknown
    _is_held: bool = True


@dataclass(slots=True)
class Scan:
    """What is in one segment, and what is behind its last record."""

    path: Path
    first: int
    size: int
    previous: int | None = None
    records: list[Record] = field(default_factory=list)
    end: int = 0  # of the last record
    is_torn: bool = False  # what is behind that can be the beginning of a record
    torn: Record | None = None  # that record, if so much of it is there
    unreadable: int = 0  # or it was up to so many records

    @property
    def next_sequence(self) -> int:
        return self.records[-1].sequence + 1 if self.records else self.first

    def lose(self, sequences: Iterable[int]) -> None:
        """Records with these numbers were here."""
        for sequence in sequences:
            is_known = self.torn is not None and self.torn.sequence == sequence
            self.records.append(self.torn if self.torn and is_known else _lost(sequence))


def segments_in(directory: Path) -> list[Path]:
    """In the order in which they were written; none if there is no such directory."""
    try:
        found = [(first, path) for path in directory.iterdir() if (first := first_of_name(path)) is not None]
    except FileNotFoundError:
        return []
    return [path for _, path in sorted(found)]


def scan_all(directory: Path) -> list[Scan]:
    """Every segment of the journal. Raises JournalTooNew, JournalDamaged, OSError.

    A torn tail of the newest one is left to the caller; what all other tails lost has become damaged records.
    """
    scans = [scan(path) for path in segments_in(directory)]
    for earlier, later in itertools.pairwise(scans):
        start, stop = earlier.next_sequence, later.first
        if earlier.unreadable:
            _lose_unreadable(earlier, before=stop)
        elif later.previous == earlier.first:
            earlier.lose(range(start, stop))
        elif earlier.is_torn:
            earlier.lose(range(start, min(start + 1, stop)))
        if start > stop:
            raise JournalDamaged(f"{str(earlier.path)!r} and {later.path.name!r} have records of the same number")
    if scans and scans[-1].unreadable:
        _lose_unreadable(scans[-1], before=None)
    return scans


def _lose_unreadable(found: Scan, *, before: int | None) -> None:
    """The first record that was lost and, if there may have been others, the last: no number is used twice."""
    first = found.next_sequence
    last = first + found.unreadable - 1
    if before is not None:
        last = min(last, before - 1)
    found.lose(sorted({first, last}) if first <= last else [])


def scan(path: Path) -> Scan:
    """Read one segment and check every byte of it. Raises JournalTooNew, OSError."""
    first = first_of_name(path)
    assert first is not None, f"{path} is not a segment"
    with _opened(path) as file:
        size = os.fstat(file).st_size
        found = Scan(path, first, size)
        header = unpack_segment(os.pread(file, SEGMENT_BYTES, 0))
        if header is not None and header.version > VERSION:
            raise JournalTooNew(
                f"journal segment {str(path)!r} has version {header.version}; this server reads up to {VERSION}. "
                "Start the server that wrote it, or a later one; nothing was changed."
            )
        if size < SEGMENT_BYTES:
            found.is_torn = True
            return found
        found.end = SEGMENT_BYTES
        if header is not None and header.first == first:
            found.previous, mark = header.previous, header.mark
        else:
            log.error("journal damaged segment=%s damage=its header is damaged", path)
            mark = guess_record(os.pread(file, RECORD_BYTES, SEGMENT_BYTES).ljust(RECORD_BYTES, b"\0")).mark
        _scan_records(file, found, mark=mark)
        return found


def read_body(record: Record) -> bytes:
    """Raises JournalDamaged, also if the segment is gone."""
    if record.damage is not None or record._place is None:
        raise JournalDamaged(f"record {record.sequence}: {record.damage}")
    path, offset = record._place.path, record._place.offset
    where = f"record {record.sequence} of {str(path)!r}"
    try:
        with _opened(path) as file:
            header = unpack_record(os.pread(file, RECORD_BYTES, offset))
            if header is None or header.sequence != record.sequence or header.body_bytes != record.body_size:
                raise JournalDamaged(f"{where}: its header is damaged")
            body = _read(file, offset + RECORD_BYTES + header.head_bytes, header.body_bytes)
    except OSError as error:
        raise JournalDamaged(f"{where} cannot be read: {error.strerror or repr(error)}") from error
    if digest(body) != header.body_digest:
        raise JournalDamaged(f"{where}: its body is damaged")
    return body


def _scan_records(file: int, found: Scan, *, mark: int) -> None:
    while found.end < found.size:
        header = _header_at(file, found, found.end, mark)
        if header is None:
            place = _search(file, found, mark)
            if place is None:
                _judge_tail(file, found)
                return
            offset, header = place
            found.records += [_lost(sequence) for sequence in range(found.next_sequence, header.sequence)]
            found.end = offset
        record = _record(file, found, header)
        if found.end + header.record_bytes > found.size:
            found.is_torn, found.torn = True, record
            return
        found.records.append(record)
        found.end += header.record_bytes


def _judge_tail(file: int, found: Scan) -> None:
    """There is no intact header in it."""
    size = found.size - found.end
    if size < RECORD_BYTES or _is_zeros(file, found.end, found.size):
        found.is_torn = True
        return
    is_one = guess_record(os.pread(file, RECORD_BYTES, found.end)).record_bytes == size
    found.unreadable = 1 if is_one else size // RECORD_BYTES


def _header_at(file: int, found: Scan, offset: int, mark: int) -> RecordHeader | None:
    """The header of a record that can be next, if one is there."""
    header = unpack_record(os.pread(file, RECORD_BYTES, offset))
    if header is None or header.mark != mark:
        return None
    most_lost = (offset - found.end) // RECORD_BYTES
    return header if 0 <= header.sequence - found.next_sequence <= most_lost else None


def _search(file: int, found: Scan, mark: int) -> tuple[int, RecordHeader] | None:
    """The next record behind a damaged header."""
    if mark == 0:  # no segment has this one; zeros are what a power failure leaves
        return None
    wanted = mark_bytes(mark)
    offset = found.end + 1
    while len(chunk := os.pread(file, _CHUNK_BYTES, offset)) >= len(wanted):
        at = -1
        while (at := chunk.find(wanted, at + 1)) >= 0:
            if (header := _header_at(file, found, offset + at, mark)) is not None:
                return offset + at, header
        offset += len(chunk) - len(wanted) + 1
    return None


def _record(file: int, found: Scan, header: RecordHeader) -> Record:
    offset = found.end + RECORD_BYTES
    head, damage = _head(file, offset, header)
    if damage is None:
        damage = _body_damage(file, offset + header.head_bytes, header)
    place = RecordPosition(found.path, found.end)
    return Record(header.sequence, head, header.body_bytes, damage, header.body_digest, place, header.is_held)


def _head(file: int, offset: int, header: RecordHeader) -> tuple[Mapping[str, Any], str | None]:
    try:
        data = _read(file, offset, header.head_bytes)
    except OSError as error:
        return {}, f"its head cannot be read: {error.strerror or repr(error)}"
    if digest(data) != header.head_digest:
        return {}, "its head is damaged"
    head: dict[str, Any] = orjson.loads(data)
    return head, None


def _body_damage(file: int, offset: int, header: RecordHeader) -> str | None:
    hasher = xxhash.xxh3_64()
    end = offset + header.body_bytes
    try:
        while offset < end:
            chunk = os.pread(file, min(_CHUNK_BYTES, end - offset), offset)
            if not chunk:
                return "its body is cut short"
            hasher.update(chunk)
            offset += len(chunk)
    except OSError as error:
        return f"its body cannot be read: {error.strerror or repr(error)}"
    return None if hasher.intdigest() == header.body_digest else "its body is damaged"


def _read(file: int, offset: int, size: int) -> bytes:
    """As much of it as there is."""
    data = os.pread(file, size, offset)
    if len(data) == size or not data:
        return data
    rest = [data]
    while (size := size - len(data)) and (data := os.pread(file, size, offset := offset + len(data))):
        rest.append(data)
    return b"".join(rest)


def _is_zeros(file: int, offset: int, end: int) -> bool:
    """Whether a file was made longer and nothing then reached it, as a power failure leaves it."""
    while offset < end and (chunk := os.pread(file, _CHUNK_BYTES, offset)):
        if any(chunk):
            return False
        offset += len(chunk)
    return True


def _lost(sequence: int) -> Record:
    return Record(sequence, {}, 0, "its header is damaged")


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
