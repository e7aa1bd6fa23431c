"""What a crash, a bad disk or a careless hand leaves of a journal, and what is made of it."""

from __future__ import annotations

import logging
import os
import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chockstone.engine.journal import scan as journal_scan
from chockstone.engine.journal.format import RECORD_BYTES, SEGMENT_BYTES, pack_record, pack_segment, unpack_segment
from chockstone.engine.journal.journal import JournalDamaged, JournalError, Record
from chockstone.engine.journal.scan import read_body, scan_all
from support.engine.journals import bodies_of, named, opened, segments, write

BODIES = [b"first", b"", b"the third body", b"4"]


async def test_a_tail_torn_at_any_byte_is_cut_off_and_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    records = await write(tmp_path / "whole", BODIES)
    content = (tmp_path / "whole" / named(0)[0]).read_bytes()
    ends = [*map(start_of, records[1:]), len(content)]
    caplog.set_level(logging.WARNING)

    for size in range(len(content)):
        directory = tmp_path / str(size)
        directory.mkdir()
        (directory / named(0)[0]).write_bytes(content[:size])
        whole = sum(end <= size for end in ends)
        caplog.clear()

        async with opened(directory) as journal:
            assert await bodies_of(journal) == dict(enumerate(BODIES[:whole])), size
            assert ("torn tail cut off" in caplog.text) == (size not in (0, SEGMENT_BYTES, *ends)), size
            assert journal.append({"kind": "operation"}, b"next").record.sequence == whole
        async with opened(directory) as journal:
            assert await bodies_of(journal) == {**dict(enumerate(BODIES[:whole])), whole: b"next"}, size


async def test_a_flipped_bit_is_found_wherever_it_is(tmp_path: Path) -> None:
    await write(tmp_path, BODIES, rotate_before=2)
    true = bodies_in(tmp_path)
    following = max(true) + 1

    for name in segments(tmp_path):
        content = (tmp_path / name).read_bytes()
        for at in range(len(content)):
            (tmp_path / name).write_bytes(content[:at] + bytes([content[at] ^ 1 << at % 8]) + content[at + 1 :])

            found = bodies_in(tmp_path)
            later = begin_segment_behind(tmp_path, first=max(found) + 1)
            found_later = bodies_in(tmp_path)
            later.unlink()

            assert found_later == found, (name, at)
            assert [found[sequence] for sequence in true].count(None) == (at >= SEGMENT_BYTES), (name, at)
            assert all(found[sequence] in (None, body) for sequence, body in true.items()), (name, at)
            assert max(found) + 1 >= following  # no number is used twice
        (tmp_path / name).write_bytes(content)


async def test_a_damaged_body_leaves_the_head_to_be_read(tmp_path: Path) -> None:
    records = await write(tmp_path, BODIES)
    change(tmp_path / named(0)[0], records[3], past_header=len(b'{"kind":"operation","index":0}'))

    async with opened(tmp_path) as journal:
        assert journal.records[3].head == {"kind": "operation", "index": 3}
        assert journal.records[3].damage == "its body is damaged"


async def test_a_damaged_head_is_not_handed_out(tmp_path: Path) -> None:
    records = await write(tmp_path, BODIES)
    change(tmp_path / named(0)[0], records[0], past_header=0)

    async with opened(tmp_path) as journal:
        assert (journal.records[0].head, journal.records[0].damage) == ({}, "its head is damaged")
        assert [record.damage for record in journal.records[1:]] == [None] * 3
        with pytest.raises(JournalDamaged, match="record 0: its head is damaged"):
            await journal.read(journal.records[0])


async def test_damage_that_comes_later_is_found_by_the_reader(tmp_path: Path) -> None:
    records = await write(tmp_path, BODIES)

    async with opened(tmp_path) as journal:
        change(tmp_path / named(0)[0], records[0], past_header=len(b'{"kind":"operation","index":0}'))
        change(tmp_path / named(0)[0], records[2], past_header=-1)

        with pytest.raises(JournalDamaged, match="record 0 of .*: its body is damaged"):
            await journal.read(journal.records[0])
        with pytest.raises(JournalDamaged, match="record 2 of .*: its header is damaged"):
            await journal.read(journal.records[2])
        assert await journal.read(journal.records[3]) == b"4"


async def test_damaged_records_are_held_until_they_are_freed(tmp_path: Path) -> None:
    records = await write(tmp_path, BODIES)
    change(tmp_path / named(0)[0], records[1], past_header=-1)

    async with opened(tmp_path) as journal:
        await journal.append({"kind": "operation"}).durable
        journal.free([0, 2, 3])
        assert journal.size_bytes > 400
    assert segments(tmp_path) == named(0, 4)

    async with opened(tmp_path) as journal:
        journal.free([0, 1, 2, 3])
    assert segments(tmp_path) == named(4)


async def test_what_a_client_sends_is_never_taken_for_a_record(tmp_path: Path) -> None:
    """Behind a damaged header records are searched for, and a body may hold the bytes of a whole journal."""
    await write(tmp_path / "inner", [b"forged"] * 3)
    forged = (tmp_path / "inner" / named(0)[0]).read_bytes()
    records = await write(tmp_path / "outer", [forged, b"true"])
    change(tmp_path / "outer" / named(0)[0], records[0], past_header=-1)

    async with opened(tmp_path / "outer") as journal:
        assert await bodies_of(journal) == {0: None, 1: b"true"}


@pytest.mark.parametrize(("sequence", "is_of_this_segment"), [(4, False), (3, True), (1000, True)])
async def test_a_record_that_does_not_belong_there_is_none(
    tmp_path: Path, sequence: int, is_of_this_segment: bool
) -> None:
    """Of another segment, or with a number that cannot be: a disk that wrote a block to the wrong place."""
    await write(tmp_path, BODIES)
    path = tmp_path / named(0)[0]
    header = unpack_segment(path.read_bytes()[:SEGMENT_BYTES])
    assert header is not None
    mark = header.mark if is_of_this_segment else header.mark ^ 1
    path.write_bytes(path.read_bytes() + pack_record(mark, sequence, b"{}", b"alien", is_held=True) + b"{}alien")

    async with opened(tmp_path) as journal:
        assert await bodies_of(journal) == {**dict(enumerate(BODIES)), 4: None}


async def test_the_next_record_is_found_at_any_distance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where it lies across two of the pieces in which a file is searched."""
    monkeypatch.setattr(journal_scan, "_CHUNK_BYTES", 64)
    bodies = [bytes(index // 2) for index in range(200)]
    records = await write(tmp_path, bodies)
    path = tmp_path / named(0)[0]
    for record in records[:-1:2]:
        change(path, record, past_header=-1)

    async with opened(tmp_path) as journal:
        found = await bodies_of(journal)
    assert found == {sequence: body if sequence % 2 else None for sequence, body in enumerate(bodies)}


async def test_several_lost_records_are_all_counted(tmp_path: Path) -> None:
    records = await write(tmp_path, BODIES)
    path = tmp_path / named(0)[0]
    start, end = start_of(records[1]), start_of(records[3])
    content = path.read_bytes()
    path.write_bytes(content[:start] + b"\xaa" * (end - start) + content[end:])

    async with opened(tmp_path) as journal:
        assert await bodies_of(journal) == {0: BODIES[0], 1: None, 2: None, 3: BODIES[3]}


async def test_numbers_are_not_used_again_behind_an_unreadable_end(tmp_path: Path) -> None:
    records = await write(tmp_path, BODIES)
    path = tmp_path / named(0)[0]
    start = start_of(records[1])
    path.write_bytes(path.read_bytes()[:start] + b"\xaa" * (path.stat().st_size - start))

    for _ in range(2):
        async with opened(tmp_path) as journal:
            assert {1: None}.items() <= (await bodies_of(journal)).items()
            assert journal.append({"kind": "operation"}).record.sequence > 3


async def test_zeros_behind_the_end_are_a_torn_tail(tmp_path: Path) -> None:
    """A file system that crashed may have made the file longer before it wrote."""
    await write(tmp_path, BODIES)
    path = tmp_path / named(0)[0]
    path.write_bytes(path.read_bytes() + bytes(4096))

    async with opened(tmp_path) as journal:
        assert await bodies_of(journal) == dict(enumerate(BODIES))
        assert journal.next_sequence == 4


async def test_a_segment_of_zeros_is_an_empty_one(tmp_path: Path) -> None:
    await write(tmp_path, BODIES)
    (tmp_path / named(4)[0]).write_bytes(bytes(3 << 20))

    async with opened(tmp_path) as journal:
        assert journal.append({"kind": "operation"}, b"next").record.sequence == 4

    async with opened(tmp_path) as journal:
        assert await bodies_of(journal) == {**dict(enumerate(BODIES)), 4: b"next"}


@pytest.mark.parametrize("kept", [0, 1, 3])
async def test_an_older_segment_that_is_too_short_has_lost_records(tmp_path: Path, kept: int) -> None:
    """Also when it ends where a record ends."""
    records = await write(tmp_path, BODIES)
    await write(tmp_path, [b"later"])
    os.truncate(tmp_path / named(0)[0], start_of(records[kept]))

    async with opened(tmp_path) as journal:
        lost = dict.fromkeys(range(kept, 4))
        assert await bodies_of(journal) == {**dict(enumerate(BODIES[:kept])), **lost, 4: b"later"}


async def test_an_older_segment_cut_within_a_record_still_tells_its_head(tmp_path: Path) -> None:
    await write(tmp_path, BODIES)
    await write(tmp_path, [b"later"])
    os.truncate(tmp_path / named(0)[0], (tmp_path / named(0)[0]).stat().st_size - 1)

    async with opened(tmp_path) as journal:
        assert journal.records[3].head == {"kind": "operation", "index": 3}
        assert journal.records[3].damage == "its body is cut short"
        assert await bodies_of(journal) == {**dict(enumerate(BODIES[:3])), 3: None, 4: b"later"}


async def test_segments_with_the_same_numbers_are_refused(tmp_path: Path) -> None:
    await write(tmp_path / "a", BODIES)
    await write(tmp_path / "b", BODIES[:2])
    await write(tmp_path / "b", BODIES)
    shutil.copy(tmp_path / "b" / named(2)[0], tmp_path / "a")

    with pytest.raises(JournalDamaged, match="records of the same number"):
        async with opened(tmp_path / "a"):
            pass


async def test_a_renamed_segment_does_not_pass_for_another(tmp_path: Path) -> None:
    await write(tmp_path, BODIES)
    (tmp_path / named(0)[0]).rename(tmp_path / named(7)[0])

    async with opened(tmp_path) as journal:
        assert set((await bodies_of(journal)).values()) == {None}


async def test_a_journal_that_cannot_be_read_says_which(tmp_path: Path) -> None:
    (tmp_path / "j").write_text("a file, not a directory")

    with pytest.raises(JournalError, match=r"journal '.*/j' cannot be read: Not a directory"):
        async with opened(tmp_path / "j"):
            pass


@settings(max_examples=60, deadline=None)
@given(
    bodies=st.lists(st.binary(max_size=200), min_size=1, max_size=8),
    hits=st.lists(st.tuples(st.integers(0, 1 << 20), st.binary(min_size=1, max_size=90)), max_size=4),
    cut=st.none() | st.integers(0, 1 << 20),
)
async def test_no_damage_makes_a_wrong_record(
    tmp_path_factory: pytest.TempPathFactory, bodies: list[bytes], hits: list[tuple[int, bytes]], cut: int | None
) -> None:
    """Whatever is written over it and wherever it ends: each record is the true one, or not to be had."""
    directory = tmp_path_factory.mktemp("journal")
    await write(directory, bodies)
    path = directory / named(0)[0]
    content = bytearray(path.read_bytes())
    for at, junk in hits:
        at %= len(content)
        content[at : at + len(junk)] = junk[: len(content) - at]
    path.write_bytes(content if cut is None else content[: cut % (len(content) + 1)])

    async with opened(directory) as journal:
        found = await bodies_of(journal)
        for record in journal.records:
            if record.head:
                assert record.head == {"kind": "operation", "index": record.sequence}
        appended = journal.append({"kind": "operation", "index": -1}, b"next").record

    for sequence, body in found.items():
        assert body is None or body == bodies[sequence]
    if cut is None and not hits:
        assert found == dict(enumerate(bodies))
    async with opened(directory) as journal:
        assert (await bodies_of(journal))[appended.sequence] == b"next"
    shutil.rmtree(directory)


def change(path: Path, record: Record, *, past_header: int) -> None:
    """Flip a bit of the record, so many bytes behind its header."""
    at = start_of(record) + RECORD_BYTES + past_header
    content = bytearray(path.read_bytes())
    content[at] ^= 4
    path.write_bytes(content)


def bodies_in(directory: Path) -> dict[int, bytes | None]:
    """As ``bodies_of``, without a Journal, which has threads."""
    records = [record for scan in scan_all(directory) for record in scan.records]
    return {record.sequence: None if record.damage else read_body(record) for record in records}


def begin_segment_behind(directory: Path, *, first: int) -> Path:
    path = directory / named(first)[0]
    path.write_bytes(pack_segment(first, int(segments(directory)[-1][:16]), 7))
    return path


def start_of(record: Record) -> int:
    assert record._place is not None
    return record._place.offset
