"""The writer against a disk that is full, fails or is slow, and against SIGKILL."""

from __future__ import annotations

import asyncio
import errno
import itertools
import os
import random
import resource
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from chockstone.checkpoints.stores import posix
from chockstone.engine.journal import journal, segment_file
from chockstone.engine.journal import writer as journal_writer
from chockstone.engine.journal.format import RECORD_BYTES, SEGMENT_BYTES
from chockstone.engine.journal.journal import Journal, JournalError, JournalWriter
from chockstone.telemetry.instruments import Instruments
from support.engine.journals import bodies_of, named, opened, segments, write
from support.exposition import series_of

RECORD = RECORD_BYTES + len(b'{"kind":"operation","index":0}') + 100


@dataclass
class Disk:
    """Takes so many bytes more, then says why not; notes every call that matters."""

    number: int = errno.ENOSPC
    refuses_sync: bool = False
    calls: list[str] = field(default_factory=list)
    tries: int = 0
    _used: int = 0  # changed by the writer's thread
    _limit: int = 1 << 40  # changed by the test

    @property
    def room(self) -> int:
        return max(0, self._limit - self._used)

    @room.setter
    def room(self, size: int) -> None:
        self._limit = self._used + size

    def pwritev(self, descriptor: int, pieces: Sequence[memoryview], offset: int) -> int:
        self.tries += 1
        data = b"".join(pieces)[: self.room]
        if not data:
            raise OSError(self.number, os.strerror(self.number))
        self._used += len(data)
        self.calls.append("write")
        return os.pwrite(descriptor, data, offset)

    def ftruncate(self, descriptor: int, size: int) -> None:
        self._used -= os.fstat(descriptor).st_size - size
        os.truncate(descriptor, size)

    def fdatasync(self, descriptor: int) -> None:
        self.tries += 1
        if self.refuses_sync:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        self.calls.append("sync")
        os.fsync(descriptor)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    disk = Disk()
    for name in ("pwritev", "ftruncate", "fdatasync"):
        monkeypatch.setattr(segment_file.os, name, getattr(disk, name))
    monkeypatch.setattr(journal_writer, "RETRY_SECONDS", 0.01)
    for module in (journal, journal_writer):
        monkeypatch.setattr(module, "GIVE_UP_SECONDS", 0.05)
    return disk


async def until(condition: Any) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.001)


@pytest.mark.parametrize("synced", [False, True])
@pytest.mark.parametrize("room", [0, 1, 60, 200, 300, 1000])
async def test_what_a_full_disk_refuses_is_written_when_there_is_room_again(
    tmp_path: Path, disk: Disk, synced: bool, room: int, caplog: pytest.LogCaptureFixture
) -> None:
    disk.room = room
    bodies = [bytes([index]) * 100 for index in range(8)]

    async with opened(tmp_path / "j", synced=synced) as journal:
        waiting = [journal.append({"kind": "operation", "index": index}, body) for index, body in enumerate(bodies)]
        await until(lambda: journal._writer.trouble)
        assert journal._writer.trouble == "the disk is full"  # no path: users and probes see it
        tries = disk.tries
        await until(lambda: disk.tries > tries + 3)
        assert caplog.messages == [f"journal not written error=the disk is full path={tmp_path / 'j'}"]  # said once
        whole = sum(each.durable.done() for each in waiting)
        assert whole < 8
        on_disk = SEGMENT_BYTES + whole * RECORD if whole else 0
        await until(lambda: (tmp_path / "j" / named(0)[0]).stat().st_size == on_disk)  # what is half written is cut off
        late = journal.append({"kind": "operation"}, b"late")

        disk.room = 1 << 30
        await late.durable
        assert caplog.messages[1:] == ["journal is written again"]
        assert journal._writer.trouble is None

    async with opened(tmp_path / "j") as journal:
        assert await bodies_of(journal) == {**dict(enumerate(bodies)), 8: b"late"}


@pytest.mark.parametrize(
    ("number", "text"), [(errno.EDQUOT, "quota is used up"), (errno.EIO, "the disk fails"), (errno.ENXIO, "No such")]
)
async def test_every_failure_of_the_disk_is_said_and_outlived(
    tmp_path: Path, disk: Disk, number: int, text: str
) -> None:
    disk.room, disk.number = 0, number

    async with opened(tmp_path) as journal:
        waiting = journal.append({"kind": "operation"}, b"x")
        await until(lambda: journal._writer.trouble)
        assert text in (journal._writer.trouble or "")
        disk.room = 1 << 30
        await waiting.durable


async def test_a_directory_that_cannot_be_made_is_made_later(tmp_path: Path, disk: Disk) -> None:
    async with opened(tmp_path / "runs" / "r") as journal:
        (tmp_path / "runs").write_text("in the way")
        waiting = journal.append({"kind": "operation"}, b"x")
        await until(lambda: journal._writer.trouble)
        (tmp_path / "runs").unlink()
        await waiting.durable

    async with opened(tmp_path / "runs" / "r") as journal:
        assert await bodies_of(journal) == {0: b"x"}


async def test_space_is_given_back_while_nothing_can_be_written(tmp_path: Path, disk: Disk) -> None:
    async with opened(tmp_path) as journal:
        old = journal.append({"kind": "operation"}, bytes(1000))
        journal.rotate({})
        await journal.append({"kind": "operation"}).durable
        disk.room = 0
        journal.append({"kind": "operation"}, b"waits")
        await until(lambda: journal._writer.trouble)

        journal.free([old.record.sequence])
        await until(lambda: segments(tmp_path) == named(1))

        disk.room = 1 << 30


async def test_the_newest_segment_on_disk_stays_while_the_next_one_cannot_be_written(
    tmp_path: Path, disk: Disk
) -> None:
    async with opened(tmp_path) as journal:
        old = journal.append({"kind": "operation"}, bytes(1000))
        await old.durable
        disk.room = 0
        journal.rotate({})
        journal.free([old.record.sequence])
        tries = disk.tries
        await until(lambda: disk.tries > tries + 2)
        assert named(0)[0] in segments(tmp_path)

        disk.room = 1 << 30

    assert segments(tmp_path) == named(1)


@pytest.mark.parametrize("first", ["journal", "writer"])
async def test_closing_in_trouble_gives_up_and_says_so(tmp_path: Path, disk: Disk, first: str) -> None:
    writer = JournalWriter(synced=False)
    journal = await Journal.open(tmp_path, writer)
    await journal.append({"kind": "operation"}, b"kept").durable
    disk.room = 3
    lost = journal.append({"kind": "operation"}, b"lost")
    await until(lambda: writer.trouble)

    async with asyncio.timeout(20):
        await (journal if first == "journal" else writer).close()
        await journal.close()
        await writer.close()

    with pytest.raises(JournalError, match="the disk is full"):
        await lost.durable
    async with opened(tmp_path) as journal:
        assert await bodies_of(journal) == {0: b"kept"}


async def test_trouble_ends_when_what_could_not_be_written_is_removed(tmp_path: Path, disk: Disk) -> None:
    writer = JournalWriter(synced=False)
    journal = await Journal.open(tmp_path / "a", writer)
    disk.room = 0
    lost = journal.append({"kind": "operation"}, b"lost")
    await until(lambda: writer.trouble)

    await journal.remove()

    with pytest.raises(JournalError, match="was removed"):
        await lost.durable
    await until(lambda: writer.trouble is None)
    await writer.close()


async def test_a_closed_writer_takes_nothing_and_lets_journals_be_closed_and_removed(tmp_path: Path) -> None:
    writer = JournalWriter(synced=False)
    journal = await Journal.open(tmp_path / "j", writer)
    written = journal.append({"kind": "operation"}, b"x")
    await writer.close()
    await writer.close()

    await written.durable
    with pytest.raises(JournalError, match="writer is closed"):
        journal.append({"kind": "operation"})
    await journal.close()
    await journal.remove()
    assert not (tmp_path / "j").exists()


async def test_one_who_stops_waiting_takes_nothing_away(tmp_path: Path, disk: Disk) -> None:
    disk.room = 0
    async with opened(tmp_path) as journal:
        waiting = journal.append({"kind": "operation"}, b"x")
        waiting.durable.cancel()
        disk.room = 1 << 30
        await journal.append({"kind": "operation"}, b"y").durable

    async with opened(tmp_path) as journal:
        assert await bodies_of(journal) == {0: b"x", 1: b"y"}


async def test_synced_means_synced_before_anyone_is_told(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    directories: list[Path] = []
    monkeypatch.setattr(
        segment_file, "fsync_directory", lambda path: (directories.append(path), posix.fsync_directory(path))
    )

    async with opened(tmp_path / "runs" / "r", synced=True) as journal:
        first = journal.append({"kind": "operation"}, b"x")
        first.durable.add_done_callback(lambda _: disk.calls.append("told"))
        await first.durable
        await asyncio.sleep(0)
        assert disk.calls == ["write", "sync", "told"]
        assert sorted(directories) == [tmp_path, tmp_path / "runs", tmp_path / "runs" / "r"]

        disk.calls.clear()
        await journal.append({"kind": "operation"}, b"y").durable
        assert disk.calls == ["write", "sync"]
        assert len(directories) == 3


async def test_what_waits_together_is_synced_together(tmp_path: Path, disk: Disk) -> None:
    async with opened(tmp_path, synced=True) as journal:
        await asyncio.gather(*(journal.append({"kind": "operation"}, b"x").durable for _ in range(500)))

    assert disk.calls.count("write") == 500
    assert disk.calls.count("sync") < 50


async def test_a_segment_is_durable_before_there_is_a_next_one(tmp_path: Path, disk: Disk) -> None:
    disk.room = 0
    async with opened(tmp_path, synced=True) as journal:
        journal.append({"kind": "operation"}, b"old")
        journal.rotate({})
        await until(lambda: journal._writer.trouble)  # both wait
        disk.room = 1 << 40
        await journal._idle.wait()  # a close in trouble gives up after a second

    assert disk.calls == ["write", "sync", "write", "sync"]


async def test_without_sync_nothing_is_synced(tmp_path: Path, disk: Disk) -> None:
    await write(tmp_path, [b"x"] * 5)

    assert disk.calls == ["write"] * 5


async def test_what_could_not_be_synced_is_written_anew(tmp_path: Path, disk: Disk) -> None:
    """After a failed sync the kernel may have dropped what it could not write, and the next sync succeeds."""
    async with opened(tmp_path, synced=True) as journal:
        await journal.append({"kind": "operation"}, b"x").durable
        durable_bytes = (tmp_path / named(0)[0]).stat().st_size
        disk.refuses_sync = True
        waiting = journal.append({"kind": "operation"}, b"y")
        await until(lambda: journal._writer.trouble)
        assert "the disk fails" in (journal._writer.trouble or "")
        assert not waiting.durable.done()
        disk.calls.clear()
        disk.refuses_sync = False
        await waiting.durable

        assert disk.calls[-2:] == ["write", "sync"]
    assert (tmp_path / named(0)[0]).stat().st_size > durable_bytes
    async with opened(tmp_path) as journal:
        assert await bodies_of(journal) == {0: b"x", 1: b"y"}


async def test_a_large_body_is_written_in_pieces_without_a_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = os.urandom(1 << 20)
    real, given = os.pwritev, []

    def short(descriptor: int, pieces: Sequence[memoryview], offset: int) -> int:
        given.extend(piece.obj for piece in pieces)
        return real(descriptor, [pieces[0][:70_001]], offset)

    monkeypatch.setattr(segment_file.os, "pwritev", short)
    async with opened(tmp_path) as journal:
        await journal.append({"kind": "operation"}, body).durable
        assert any(each is body for each in given)
        assert await journal.read((await Journal.open(tmp_path, journal._writer)).records[0]) == body


async def test_a_limit_of_the_system_is_a_full_disk_too(tmp_path: Path) -> None:
    """The real thing: the kernel takes a part of the write and refuses the rest."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    async with opened(tmp_path) as journal:
        await journal.append({"kind": "operation"}, b"before").durable
        size = (tmp_path / named(0)[0]).stat().st_size
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (5000, hard))
            waiting = journal.append({"kind": "operation"}, b"b" * 100_000)
            await until(lambda: journal._writer.trouble)
            assert "does not allow files this large" in (journal._writer.trouble or "")
            await until(lambda: (tmp_path / named(0)[0]).stat().st_size == size)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        await waiting.durable

    async with opened(tmp_path) as journal:
        assert await bodies_of(journal) == {0: b"before", 1: b"b" * 100_000}


CHILD = """
    import asyncio, sys
    from pathlib import Path
    from chockstone.engine.journal.journal import Journal, JournalWriter

    async def main(directory, synced):
        writer = JournalWriter(synced=synced)
        journal = await Journal.open(Path(directory), writer, segment_bytes=100_000)

        async def work(task):
            for index in range(10**6):
                body = bytes([index % 256]) * (index % 7 * 1000)
                appended = journal.append({"kind": "operation", "task": task, "index": index}, body)
                await appended.durable
                print(appended.record.sequence, task, index, flush=True)

        await asyncio.gather(*(work(task) for task in range(4)))

    asyncio.run(main(sys.argv[1], sys.argv[2] == "synced"))
"""


@pytest.mark.parametrize("mode", ["on", "synced"])
async def test_what_was_durable_survives_sigkill(tmp_path: Path, mode: str) -> None:
    told: dict[int, tuple[int, int]] = {}

    for lines in (1, 40, 150):  # several lives of the same journal
        child = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(CHILD), str(tmp_path), mode], stdout=subprocess.PIPE, text=True
        )
        assert child.stdout is not None
        for _ in range(lines):
            note(told, child.stdout.readline())
        child.send_signal(signal.SIGKILL)
        for line in child.stdout:
            note(told, line)
        child.wait()
        child.stdout.close()

    async with opened(tmp_path) as journal:
        assert [record.sequence for record in journal.records] == list(range(journal.next_sequence))
        assert [record.damage for record in journal.records] == [None] * journal.next_sequence
        found = {record.sequence: (record.head["task"], record.head["index"]) for record in journal.records}
        assert len(told) >= 191
        assert {sequence: found[sequence] for sequence in told} == told
        for record in journal.records[:: len(journal.records) // 20]:
            index = record.head["index"]
            assert await journal.read(record) == bytes([index % 256]) * (index % 7 * 1000)


def note(told: dict[int, tuple[int, int]], line: str) -> None:
    if line.endswith("\n"):
        sequence, task, index = map(int, line.split())
        told[sequence] = (task, index)


@pytest.mark.parametrize("seed", range(12))
async def test_a_journal_is_what_its_callers_think_whatever_the_disk_does(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Appends, frees and rotations in any order, a disk that fills up and fails in between, and reopening."""
    monkeypatch.setattr(journal_writer, "RETRY_SECONDS", 0.001)
    dice = random.Random(seed)
    needed: dict[int, bytes] = {}
    next_sequence = 0

    for _ in range(6):
        async with opened(tmp_path, synced=dice.random() < 0.5, segment_bytes=dice.choice([300, 2000])) as journal:
            assert journal.next_sequence == next_sequence
            assert [record.damage for record in journal.records if record.damage] == []
            assert needed.items() <= (await bodies_of(journal)).items()
            journal.free([record.sequence for record in journal.records if record.sequence not in needed])
            for _ in range(25):
                match dice.choice(
                    ["append", "append", "append", "rotate", "free", "free range", "fill", "fail", "mend"]
                ):
                    case "append":
                        body = dice.randbytes(dice.randrange(300))
                        needed[journal.append({"kind": "operation"}, body).record.sequence] = body
                    case "rotate":
                        journal.rotate({"about": "r"})
                    case "free" if needed:
                        freed = dice.choice(sorted(needed))
                        journal.free([freed])
                        del needed[freed]
                    case "free range" if len(needed) > 6:
                        through = sorted(needed)[3]
                        journal.free(range(through + 1))
                        needed = {sequence: body for sequence, body in needed.items() if sequence > through}
                    case "fill":
                        disk.room = dice.randrange(500)
                    case "fail":
                        disk.refuses_sync = True
                    case "mend":
                        disk.room, disk.refuses_sync = 1 << 40, False
                    case _:
                        await asyncio.sleep(0.002)
            disk.room, disk.refuses_sync = 1 << 40, False
            await journal.append({"kind": "end"}, held=False).durable
            next_sequence = journal.next_sequence

    firsts = [int(name[:16]) for name in segments(tmp_path)]
    for first, following in itertools.pairwise(firsts):
        assert any(first <= sequence < following for sequence in needed), "a segment that nobody needs"


@pytest.mark.parametrize("synced", [False, True])
async def test_batches_are_measured(tmp_path: Path, synced: bool) -> None:
    instruments = Instruments()
    writer = JournalWriter(synced=synced, instruments=instruments)
    journal = await Journal.open(tmp_path, writer)
    await journal.append({"kind": "operation"}, bytes(1000)).durable
    await journal.close()
    await writer.close()

    found = series_of(instruments.render())
    assert found["chockstone_journal_records_total"] == 1
    assert found["chockstone_journal_written_bytes_total"] > 1000
    assert found["chockstone_journal_write_seconds_count"] == 1
    assert found["chockstone_journal_sync_seconds_count"] == synced
    assert (writer.waiting_records, writer.lag_seconds) == (0, 0.0)


async def test_a_disk_that_fails_is_counted_and_the_oldest_record_has_an_age(tmp_path: Path, disk: Disk) -> None:
    instruments = Instruments()
    writer = JournalWriter(synced=False, instruments=instruments)
    journal = await Journal.open(tmp_path, writer)
    disk.room = 0
    appended = journal.append({"kind": "operation"}, b"waits")
    await until(lambda: writer.trouble)

    assert series_of(instruments.render())["chockstone_journal_failures_total"] >= 1
    assert writer.waiting_records == 1
    assert writer.lag_seconds > 0

    disk.room = 1 << 30
    await appended.durable
    await journal.close()
    await writer.close()
    assert series_of(instruments.render())["chockstone_journal_records_total"] == 1
