from __future__ import annotations

import asyncio
import os
import shutil
import threading
from pathlib import Path

import pytest

from chockstone.engine.journal.journal import Journal, JournalWriter
from chockstone.engine.journal.mark_file import MARK_BYTES, JournalMark, MarkFile

MARK = JournalMark("0a1b2c3d", sequence=2**40, operations=7)


def test_a_mark_is_replaced_in_place_and_read_back(tmp_path: Path) -> None:
    file = MarkFile(tmp_path / "marks" / "r.mark")
    assert file.read() is None

    file.write(JournalMark("0a1b2c3d", 1, 1))
    file.write(MARK)
    file.close()

    assert file.read() == MARK
    assert file.path.stat().st_size == MARK_BYTES == 48
    assert (file.path.stat().st_mode & 0o777, file.path.parent.stat().st_mode & 0o777) == (0o600, 0o700)


def test_a_damaged_mark_is_none(tmp_path: Path) -> None:
    file = MarkFile(tmp_path / "r.mark")
    whole = MARK.encode()
    for at in range(len(whole)):
        file.path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        assert file.read() is None, at
    for size in (0, 1, len(whole) - 1):
        file.path.write_bytes(whole[:size])
        assert file.read() is None, size
    file.path.write_bytes(whole + b"\0")
    assert file.read() is None


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "r.mark").symlink_to(tmp_path / "elsewhere")

    with pytest.raises(OSError, match="[Ll]evels of symbolic links|[Tt]oo many"):
        MarkFile(tmp_path / "r.mark").write(MARK)
    assert not os.path.exists(tmp_path / "elsewhere")


async def test_the_mark_is_there_when_an_append_is_acknowledged_and_goes_with_its_journal(tmp_path: Path) -> None:
    writer = JournalWriter(synced=False)
    file = MarkFile(tmp_path / "r.mark")
    journal = await Journal.open(tmp_path / "j", writer, mark_file=file)

    for count in range(1, 4):
        appended = journal.append({"kind": "operation"}, mark=lambda at, count=count: JournalMark("b", at, count))
        await appended.durable
        assert file.read() == JournalMark("b", appended.record.sequence, count)
    await journal.append({"kind": "result"}).durable
    assert file.read() == JournalMark("b", 2, 3), "only what is marked counts"

    await journal.remove()
    assert not file.path.exists()
    await writer.close()


async def test_what_cannot_be_marked_is_not_acknowledged_until_it_can(tmp_path: Path) -> None:
    writer = JournalWriter(synced=False)
    (tmp_path / "marks").write_bytes(b"in the way")
    file = MarkFile(tmp_path / "marks" / "r.mark")
    journal = await Journal.open(tmp_path / "j", writer, mark_file=file)

    appended = journal.append({"kind": "operation"}, b"body", mark=lambda at: JournalMark("b", at, 1))
    while writer.trouble is None:
        await asyncio.sleep(0.005)
    assert not appended.durable.done()
    (tmp_path / "marks").unlink()
    await appended.durable

    assert file.read() == JournalMark("b", 0, 1)
    assert await journal.read(appended.record) == b"body"
    await journal.close()
    await writer.close()


async def test_no_mark_is_ahead_of_its_journal_while_another_one_cannot_be_written(tmp_path: Path) -> None:
    """A server that is killed while the disk takes no new file must not find that it lost something."""
    writer = JournalWriter(synced=False)
    (tmp_path / "full").write_bytes(b"in the way")
    good, bad = MarkFile(tmp_path / "good.mark"), MarkFile(tmp_path / "full" / "bad.mark")
    first = await Journal.open(tmp_path / "first", writer, mark_file=good)
    second = await Journal.open(tmp_path / "second", writer, mark_file=bad)
    both_wait = threading.Event()

    def hold() -> None:
        both_wait.wait(60)

    writer.soon(hold)  # so that both are in one batch
    appends = [
        journal.append({"kind": "operation"}, b"body", mark=lambda at: JournalMark("b", at, 1))
        for journal in (first, second)
    ]
    both_wait.set()
    while writer.trouble is None:
        await asyncio.sleep(0.005)

    left = await Journal.open(shutil.copytree(tmp_path / "first", tmp_path / "left"), writer)
    mark = good.read()
    assert mark is None or mark.sequence < left.next_sequence
    (tmp_path / "full").unlink()
    for appended in appends:
        await appended.durable
    assert [await each.read(appended.record) for each, appended in zip((first, second), appends, strict=True)] == [
        b"body",
        b"body",
    ]
    for journal in (first, second):
        await journal.close()
        assert [record.damage for record in (await Journal.open(journal.directory, writer)).records] == [None]
    await writer.close()
