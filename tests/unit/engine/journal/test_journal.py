from __future__ import annotations

import asyncio
import os
import stat
from pathlib import Path

import orjson
import pytest

from chockstone.engine.journal.format import SEGMENT_BYTES, digest, pack_segment
from chockstone.engine.journal.journal import Journal, JournalDamaged, JournalError, JournalTooNew, JournalWriter
from support.engine.journals import bodies_of, named, opened, segments, write


async def test_what_was_appended_is_found_again(tmp_path: Path) -> None:
    async with opened(tmp_path / "j") as journal:
        first = journal.append({"kind": "operation", "word": "pass"}, b"one")
        second = journal.append({"kind": "result", "of": 0, "text": "näh"}, bytes(300_000))
        third = journal.append({"kind": "attempt"})
        await third.durable
        assert first.durable.done() and second.durable.done()

    async with opened(tmp_path / "j") as journal:
        assert [record.sequence for record in journal.records] == [0, 1, 2]
        assert [record.head.get("text") for record in journal.records] == [None, "näh", None]
        assert [record.body_size for record in journal.records] == [3, 300_000, 0]
        assert [record.body_digest for record in journal.records] == [
            digest(b"one"),
            digest(bytes(300_000)),
            digest(b""),
        ]
        assert [record.damage for record in journal.records] == [None] * 3
        assert await bodies_of(journal) == {0: b"one", 1: bytes(300_000), 2: b""}
        assert journal.next_sequence == 3


async def test_a_record_can_be_read_before_and_after_it_is_written(tmp_path: Path) -> None:
    async with opened(tmp_path) as journal:
        appended = journal.append({"kind": "operation"}, b"body")

        assert not appended.durable.done()
        assert await journal.read(appended.record) == b"body"
        await appended.durable
        assert await journal.read(appended.record) == b"body"


async def test_a_head_is_what_it_was_when_it_was_appended(tmp_path: Path) -> None:
    head = {"kind": "operation", "word": "pass"}

    async with opened(tmp_path) as journal:
        appended = journal.append(head)
        head["word"] = "save"
        assert appended.record.head["word"] == "pass"

    async with opened(tmp_path) as journal:
        assert journal.records[0].head["word"] == "pass"


async def test_a_head_that_is_not_json_is_refused_and_leaves_no_gap(tmp_path: Path) -> None:
    async with opened(tmp_path) as journal:
        with pytest.raises(orjson.JSONEncodeError):
            journal.append({"kind": object()})
        assert journal.append({"kind": "operation"}).record.sequence == 0


async def test_a_journal_nobody_wrote_to_leaves_no_directory(tmp_path: Path) -> None:
    async with opened(tmp_path / "j") as journal:
        assert (journal.records, journal.next_sequence, journal.size_bytes) == ([], 0, 0)

    assert not (tmp_path / "j").exists()


async def test_nobody_else_may_read_it(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        await write(tmp_path / "journal" / "runs" / "r", [b"secret"])
    finally:
        os.umask(before)

    for made in ("journal", "journal/runs", "journal/runs/r"):
        assert stat.S_IMODE((tmp_path / made).stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "journal/runs/r" / named(0)[0]).stat().st_mode) == 0o600


async def test_sequences_go_on_after_reopening_in_a_new_segment(tmp_path: Path) -> None:
    await write(tmp_path, [b"a", b"b"])
    before = (tmp_path / named(0)[0]).read_bytes()
    await write(tmp_path, [b"c"])

    assert segments(tmp_path) == named(0, 2)
    assert (tmp_path / named(0)[0]).read_bytes() == before  # never written to again
    async with opened(tmp_path) as journal:
        assert await bodies_of(journal) == {0: b"a", 1: b"b", 2: b"c"}
        assert journal.size_bytes == sum(path.stat().st_size for path in tmp_path.iterdir())


async def test_a_full_segment_is_followed_by_another(tmp_path: Path) -> None:
    async with opened(tmp_path, segment_bytes=1100) as journal:
        for index in range(6):
            journal.append({"kind": "operation"}, bytes([index]) * 400)
        journal.append({"kind": "operation"}, bytes(5000))  # alone it is larger than a segment should be

    assert segments(tmp_path) == named(0, 2, 4, 6)
    async with opened(tmp_path) as journal:
        found = await bodies_of(journal)
        assert found == {**{index: bytes([index]) * 400 for index in range(6)}, 6: bytes(5000)}


async def test_freed_segments_are_deleted_but_for_the_newest(tmp_path: Path) -> None:
    async with opened(tmp_path) as journal:
        old = [journal.append({"kind": "operation"}, b"x" * 100).record.sequence for _ in range(3)]
        journal.append({"kind": "attempt"}, held=False)
        journal.rotate({"about": "r"})
        new = journal.append({"kind": "operation"}, b"new")
        await new.durable
        full = journal.size_bytes

        journal.free(old[:2])
        journal.free(old[:2])
        journal.free([-5, 77, 10**9])
        assert journal.size_bytes == full

        journal.free(old[2:])
        journal.free([new.record.sequence])
        assert journal.size_bytes < full

    assert segments(tmp_path) == named(4)
    async with opened(tmp_path) as journal:
        assert [record.sequence for record in journal.records] == [4, 5]
        assert journal.next_sequence == 6
        assert journal.size_bytes == (tmp_path / named(4)[0]).stat().st_size


@pytest.mark.parametrize("as_range", [True, False])
async def test_what_is_held_keeps_only_its_own_segment(tmp_path: Path, as_range: bool) -> None:
    async with opened(tmp_path) as journal:
        for _ in range(3):
            journal.append({"kind": "operation"})
            journal.append({"kind": "operation"})
            journal.rotate({})
        journal.append({"kind": "operation"})
        for start in (0, 6):  # segments 0-2, 3-5, 6-8, 9-: the first and the third
            freed = range(start, start + 2)
            journal.free(freed if as_range else iter(freed))

    assert segments(tmp_path) == named(2, 8)
    async with opened(tmp_path) as journal:
        assert [record.sequence for record in journal.records] == [2, 3, 4, 8, 9]


async def test_the_last_segment_stays_until_a_later_one_is_there(tmp_path: Path) -> None:
    await write(tmp_path, [b"a", b"b"])

    async with opened(tmp_path) as journal:
        journal.free(range(100))
        assert journal.next_sequence == 2
    assert segments(tmp_path) == named(0)

    async with opened(tmp_path) as journal:
        assert [record.sequence for record in journal.records] == [0, 1]
        journal.free(range(100))
        await journal.append({"kind": "operation"}).durable
    assert segments(tmp_path) == named(2)


async def test_what_was_held_is_held_again_and_the_rest_is_not(tmp_path: Path) -> None:
    async with opened(tmp_path) as journal:
        journal.rotate({"about": "r"})
        journal.append({"kind": "attempt"}, held=False)
        journal.append({"kind": "operation"})

    async with opened(tmp_path) as journal:
        journal.rotate({"about": "r"})
        journal.append({"kind": "operation"})
    assert segments(tmp_path) == named(0, 3)

    async with opened(tmp_path) as journal:
        journal.free([2])
    assert segments(tmp_path) == named(3)


async def test_each_segment_starts_with_the_newest_head(tmp_path: Path) -> None:
    async with opened(tmp_path, segment_bytes=700) as journal:
        journal.rotate({"about": "first"})
        journal.rotate({"about": "second"})
        for _ in range(2):
            journal.append({"kind": "operation"}, bytes(400))

    async with opened(tmp_path) as journal:
        journal.append({"kind": "operation"}, b"after reopening")

    async with opened(tmp_path) as journal:
        found = [(record.sequence, record.head.get("about", record.head["kind"])) for record in journal.records]
    second = "second"  # the first head, alone in its segment, is gone
    assert found == [(1, second), (2, "operation"), (3, second), (4, "operation"), (5, second), (6, "operation")]
    assert segments(tmp_path) == named(1, 3, 5)


async def test_many_tasks_and_journals_keep_their_order(tmp_path: Path) -> None:
    writer = JournalWriter(synced=False)
    journals = [await Journal.open(tmp_path / str(index), writer, segment_bytes=2000) for index in range(3)]
    told: list[list[int]] = [[] for _ in journals]

    async def work(which: int, task: int) -> None:
        for index in range(20):
            appended = journals[which].append({"kind": "operation", "task": task, "index": index}, b"x" * task)
            sequence = appended.record.sequence
            appended.durable.add_done_callback(lambda _, sequence=sequence: told[which].append(sequence))
            if (index + task) % 3 == 0:
                await appended.durable
                assert sequence in told[which]
            else:
                await asyncio.sleep(0)

    await asyncio.gather(*(work(which, task) for which in range(3) for task in range(10)))
    await writer.close()

    assert told == [sorted(each) for each in told]
    for index in range(3):
        async with opened(tmp_path / str(index)) as journal:
            assert [record.sequence for record in journal.records] == list(range(200))
            for task in range(10):
                own = [record for record in journal.records if record.head["task"] == task]
                assert [record.head["index"] for record in own] == list(range(20))


async def test_a_removed_journal_is_gone_with_what_waits(tmp_path: Path) -> None:
    async with opened(tmp_path / "j") as journal:
        await journal.append({"kind": "operation"}, b"x").durable
        waiting = journal.append({"kind": "operation"}, bytes(1 << 20))

        await journal.remove()
        await journal.remove()

        assert not (tmp_path / "j").exists()
        with pytest.raises(JournalError, match="closed"):
            journal.append({"kind": "operation"})
        with pytest.raises(JournalDamaged):
            await journal.read(waiting.record)
        again = await Journal.open(tmp_path / "j", journal._writer)
        assert (again.records, again.next_sequence) == ([], 0)
        await again.remove()


async def test_a_closed_journal_takes_nothing(tmp_path: Path) -> None:
    async with opened(tmp_path) as journal:
        journal.append({"kind": "operation"})
        await journal.close()
        await journal.close()

        with pytest.raises(JournalError, match="closed"):
            journal.append({"kind": "operation"})
        with pytest.raises(JournalError, match="closed"):
            journal.rotate({})


async def test_a_closed_journal_holds_no_file_open(tmp_path: Path) -> None:
    async with opened(tmp_path) as journal:
        journal.append({"kind": "operation"})
        journal.rotate({})
        await journal.append({"kind": "operation"}).durable
        assert open_files(tmp_path) == named(1)

        await journal.close()

        assert open_files(tmp_path) == []


async def test_a_later_version_is_refused_and_nothing_is_touched(tmp_path: Path) -> None:
    await write(tmp_path, [b"a"])
    later = bytearray(pack_segment(1, 0, 7)[:-8])
    later[8] = 2
    (tmp_path / named(1)[0]).write_bytes(bytes(later) + digest(bytes(later)).to_bytes(8, "little") + b"whatever")
    torn = tmp_path / named(0)[0]
    torn.write_bytes(torn.read_bytes()[:-1])
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    with pytest.raises(JournalTooNew, match="version 2.* up to 1"):
        async with opened(tmp_path):
            pass

    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


async def test_other_files_in_the_directory_are_left_alone(tmp_path: Path) -> None:
    await write(tmp_path, [b"a"])
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "1.journal").write_text("mine")

    async with opened(tmp_path) as journal:
        assert await bodies_of(journal) == {0: b"a"}

    assert segments(tmp_path) == [*named(0), "1.journal", "notes.txt"]


async def test_a_segment_with_records_is_never_written_over(tmp_path: Path) -> None:
    async with opened(tmp_path) as journal:
        (tmp_path / named(0)[0]).write_bytes(bytes(SEGMENT_BYTES + 1))
        waiting = journal.append({"kind": "operation"})

    with pytest.raises(JournalError, match="has records already"):
        await waiting.durable
    assert (tmp_path / named(0)[0]).read_bytes() == bytes(SEGMENT_BYTES + 1)


def open_files(directory: Path) -> list[str]:
    links = [
        os.readlink(f"/proc/self/fd/{name}")
        for name in os.listdir("/proc/self/fd")
        if os.path.exists(f"/proc/self/fd/{name}")
    ]
    return sorted(Path(link).name for link in links if Path(link).parent == directory)
