"""The bytes of a journal: segment headers, record headers and their digests.

docs/reference/journal-format.md says the same for people; they change together.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import xxhash

VERSION: Final = 1
SUFFIX: Final = ".journal"
_MAGIC: Final = b"\x89CHKJNL\n"
_SEGMENT: Final = struct.Struct("<8sIIQQQ")  # magic, version, zero, first sequence, that of the one before, mark
_RECORD: Final = struct.Struct("<QIIQQQQ")  # mark, length of head, flags, length of body, sequence, digests of both
_DIGEST: Final = struct.Struct("<Q")
_NAME: Final = re.compile(r"(\d{16,20})\.journal")
_HELD: Final = 1  # a flag
_NONE: Final = (1 << 64) - 1
SEGMENT_BYTES: Final = _SEGMENT.size + _DIGEST.size
RECORD_BYTES: Final = _RECORD.size + _DIGEST.size


class JournalError(Exception):
    """A journal cannot be used, or not as it was asked to be."""


class JournalTooNew(JournalError):
    """A later version wrote it. Nothing was changed."""


class JournalUnavailable(JournalError):
    """The system does not let it be read at the moment, so its content is unknown."""


class JournalDamaged(JournalError):
    """What was written is not what is there."""


@dataclass(frozen=True, slots=True)
class SegmentHeader:
    version: int
    first: int
    previous: int | None  # first sequence of the segment that it was begun after; None: of none
    mark: (
        int  # a number of this segment's own, never 0, in each of its records: what a client sends cannot look like one
    )


@dataclass(frozen=True, slots=True)
class RecordHeader:
    mark: int
    sequence: int
    head_bytes: int
    body_bytes: int
    head_digest: int
    body_digest: int
    is_held: bool  # until it is freed

    @property
    def record_bytes(self) -> int:
        return RECORD_BYTES + self.head_bytes + self.body_bytes


def segment_name(first: int) -> str:
    return f"{first:016d}{SUFFIX}"


def first_of_name(path: Path) -> int | None:
    """The first sequence of the segment with this name; None if it is not a segment's name."""
    match = _NAME.fullmatch(path.name)
    return int(match[1]) if match else None


def digest(data: bytes | memoryview) -> int:
    return int(xxhash.xxh3_64_intdigest(data))


def pack_segment(first: int, previous: int | None, mark: int) -> bytes:
    return _sealed(_SEGMENT.pack(_MAGIC, VERSION, 0, first, _NONE if previous is None else previous, mark))


def unpack_segment(data: bytes) -> SegmentHeader | None:
    """None: damaged. The version may be a later one; these bytes mean the same in all."""
    if not _is_sealed(data, SEGMENT_BYTES):
        return None
    magic, version, _, first, previous, mark = _SEGMENT.unpack_from(data)
    return SegmentHeader(version, first, None if previous == _NONE else previous, mark) if magic == _MAGIC else None


def pack_record(mark: int, sequence: int, head: bytes, body: bytes, *, is_held: bool) -> bytes:
    flags = _HELD if is_held else 0
    return _sealed(_RECORD.pack(mark, len(head), flags, len(body), sequence, digest(head), digest(body)))


def unpack_record(data: bytes) -> RecordHeader | None:
    """None: damaged."""
    return guess_record(data) if _is_sealed(data, RECORD_BYTES) else None


def guess_record(data: bytes) -> RecordHeader:
    """What a damaged header says; not to be trusted."""
    mark, head_bytes, flags, body_bytes, sequence, head_digest, body_digest = _RECORD.unpack_from(data)
    return RecordHeader(mark, sequence, head_bytes, body_bytes, head_digest, body_digest, bool(flags & _HELD))


def mark_bytes(mark: int) -> bytes:
    """How each record header of the segment begins."""
    return _RECORD.pack(mark, 0, 0, 0, 0, 0, 0)[:8]


def _sealed(fields: bytes) -> bytes:
    return fields + _DIGEST.pack(digest(fields))


def _is_sealed(data: bytes, size: int) -> bool:
    return len(data) == size and _DIGEST.pack(digest(data[: -_DIGEST.size])) == data[-_DIGEST.size :]
