"""What a segment's bytes are taken for. ``test_journal_damage`` has every byte of a journal damaged in turn."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from chockstone.engine.journal.format import (
    RECORD_BYTES,
    SEGMENT_BYTES,
    JournalDamaged,
    JournalTooNew,
    digest,
    pack_record,
    pack_segment,
    segment_name,
)
from chockstone.engine.journal.scan import Record, read_body, scan, scan_all, segments_in

MARK = 0x0123456789ABCDEF
HEAD = b'{"kind":"operation"}'
BODIES = (b"first", b"", b"third")


def record(sequence: int, body: bytes, *, mark: int = MARK, head: bytes = HEAD, is_held: bool = True) -> bytes:
    return pack_record(mark, sequence, head, body, is_held=is_held) + head + body


def write(directory: Path, *records: bytes, first: int = 0, previous: int | None = None) -> Path:
    directory.mkdir(exist_ok=True)
    path = directory / segment_name(first)
    path.write_bytes(pack_segment(first, previous, MARK) + b"".join(records))
    return path


def whole(first: int = 0) -> list[bytes]:
    return [record(first + number, body) for number, body in enumerate(BODIES)]


def damages(records: list[Record]) -> list[tuple[int, str | None]]:
    return [(each.sequence, each.damage) for each in records]


def test_a_whole_segment(tmp_path: Path) -> None:
    path = write(tmp_path, *whole(), record(3, b"", head=b'{"kind":"head"}', is_held=False), first=0)

    found = scan(path)

    assert [read_body(each) for each in found.records] == [*BODIES, b""]
    assert [each.head["kind"] for each in found.records] == ["operation"] * 3 + ["head"]
    assert [each._is_held for each in found.records] == [True, True, True, False]
    assert (found.end, found.is_torn, found.unreadable, found.next_sequence) == (path.stat().st_size, False, 0, 4)


def test_segments_are_listed_in_order_and_other_files_are_not(tmp_path: Path) -> None:
    names = [segment_name(first) for first in (0, 9, 10, 10**16)]
    for name in (*reversed(names), "5.journal", "0000000000000001.journal.tmp", "mark"):
        (tmp_path / name).touch()

    assert [path.name for path in segments_in(tmp_path)] == names
    assert segments_in(tmp_path / "nowhere") == []


def test_a_later_version_is_refused_and_left_alone(tmp_path: Path) -> None:
    fields = struct.pack("<8sIIQQQ", b"\x89CHKJNL\n", 2, 0, 0, 2**64 - 1, MARK)
    path = tmp_path / segment_name(0)
    path.write_bytes(fields + struct.pack("<Q", digest(fields)))

    with pytest.raises(JournalTooNew, match="has version 2; this server reads up to 1"):
        scan_all(tmp_path)


@pytest.mark.parametrize("tail", [b"\0" * 500, record(3, b"fourth")[:-1], b"x" * (RECORD_BYTES - 1)])
def test_a_beginning_of_a_record_and_zeros_are_a_torn_tail(tmp_path: Path, tail: bytes) -> None:
    found = scan(write(tmp_path, *whole(), tail))

    assert damages(found.records) == [(0, None), (1, None), (2, None)]
    assert (found.is_torn, found.unreadable, found.size - found.end) == (True, 0, len(tail))


def test_other_bytes_behind_the_last_record_are_damage(tmp_path: Path) -> None:
    [found] = scan_all(write(tmp_path, *whole(), b"x" * (3 * RECORD_BYTES)).parent)

    assert not found.is_torn
    assert damages(found.records)[3:] == [(3, "its header is damaged"), (5, "its header is damaged")]


def test_a_record_behind_a_damaged_header_is_found(tmp_path: Path) -> None:
    first, second, third = whole()
    path = write(tmp_path, first, b"?" + second[1:], third)

    found = scan(path)

    assert damages(found.records) == [(0, None), (1, "its header is damaged"), (2, None)]
    assert read_body(found.records[2]) == b"third"


def test_a_body_that_looks_like_a_record_is_not_taken_for_one(tmp_path: Path) -> None:
    """A client can send any bytes, but does not know the mark."""
    forged = record(1, b"forged", mark=MARK + 1)
    first = record(0, forged)
    path = write(tmp_path, b"?" + first[1:], record(1, b"true"))

    found = scan(path)

    assert damages(found.records) == [(0, "its header is damaged"), (1, None)]
    assert read_body(found.records[1]) == b"true"


def test_a_damaged_segment_header_costs_no_record(tmp_path: Path) -> None:
    path = write(tmp_path, *whole())
    path.write_bytes(b"?" + path.read_bytes()[1:])

    assert damages(scan(path).records) == [(0, None), (1, None), (2, None)]


def test_records_that_are_missing_between_two_segments_are_known_to_be(tmp_path: Path) -> None:
    write(tmp_path, *whole()[:2])
    write(tmp_path, *whole(5), first=5, previous=0)

    earlier, later = scan_all(tmp_path)

    assert [sequence for sequence, damage in damages(earlier.records) if damage] == [2, 3, 4]
    assert damages(later.records) == [(5, None), (6, None), (7, None)]


def test_a_segment_between_two_that_was_deleted_is_no_damage(tmp_path: Path) -> None:
    write(tmp_path, *whole())
    write(tmp_path, *whole(9), first=9, previous=3)

    assert [damages(each.records)[-1] for each in scan_all(tmp_path)] == [(2, None), (11, None)]


def test_two_records_of_one_number_are_refused(tmp_path: Path) -> None:
    write(tmp_path, *whole())
    write(tmp_path, *whole(2), first=2, previous=0)

    with pytest.raises(JournalDamaged, match="records of the same number"):
        scan_all(tmp_path)


def test_a_body_is_checked_again_when_it_is_read(tmp_path: Path) -> None:
    path = write(tmp_path, *whole())
    [first, _, third] = scan(path).records
    content = bytearray(path.read_bytes())
    content[SEGMENT_BYTES + RECORD_BYTES + len(HEAD)] ^= 1
    path.write_bytes(content)

    with pytest.raises(JournalDamaged, match=r"record 0 of .*: its body is damaged"):
        read_body(first)
    assert read_body(third) == b"third"
    path.unlink()
    with pytest.raises(JournalDamaged, match="cannot be read: No such file"):
        read_body(third)
