from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from chockstone.engine.journal.format import RECORD_BYTES, SEGMENT_BYTES, JournalError, segment_name
from chockstone.engine.journal.scan import read_body, scan
from chockstone.engine.journal.segment_file import JournalEntry, SegmentFile

HEAD = b'{"kind":"operation"}'


def segment(directory: Path, first: int = 0, *, replaces: SegmentFile | None = None) -> SegmentFile:
    return SegmentFile(directory / segment_name(first), first, None, 0x0123456789ABCDEF, replaces)


def entry(file: SegmentFile, sequence: int, body: bytes, *, offset: int = SEGMENT_BYTES) -> JournalEntry:
    end = offset + RECORD_BYTES + len(HEAD) + len(body)
    return JournalEntry(file, offset, sequence, HEAD, body, True, end, lambda _: None)


def put(file: SegmentFile, *bodies: bytes) -> list[JournalEntry]:
    entries: list[JournalEntry] = []
    for body in bodies:
        offset = entries[-1].end if entries else SEGMENT_BYTES
        entries.append(entry(file, file.first + len(entries), body, offset=offset))
        file.put(entries[-1])
    return entries


def test_records_are_read_as_they_were_put(tmp_path: Path) -> None:
    file = segment(tmp_path / "a" / "b")  # neither directory is there

    put(file, b"first", b"", b"third")
    file.sync()
    file.close()

    found = scan(file.path)
    assert [read_body(record) for record in found.records] == [b"first", b"", b"third"]
    assert not found.is_torn
    assert [oct(path.stat().st_mode & 0o777) for path in (file.path, file.path.parent)] == ["0o600", "0o700"]


def test_a_sync_makes_each_new_name_durable_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[Path] = []
    monkeypatch.setattr("chockstone.engine.journal.segment_file.fsync_directory", synced.append)
    file = segment(tmp_path / "a" / "b")

    put(file, b"first")
    file.sync()
    file.sync()
    file.close()

    assert sorted(synced) == [tmp_path, tmp_path / "a", tmp_path / "a" / "b"]


@pytest.mark.parametrize("bodies", [(b"refused",), (b"kept", b"refused")], ids=["first", "later"])
def test_a_record_that_cannot_be_written_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bodies: tuple[bytes, ...]
) -> None:
    file = segment(tmp_path)
    kept = put(file, *bodies[:-1])
    pwritev = os.pwritev

    def half(descriptor: int, pieces: Any, offset: int) -> int:
        if b"refused" in b"".join(pieces):
            pwritev(descriptor, [b"".join(pieces)[:20]], offset)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return pwritev(descriptor, pieces, offset)

    with monkeypatch.context() as full:
        full.setattr(os, "pwritev", half)
        with pytest.raises(OSError, match="No space left"):
            file.put(entry(file, len(kept), b"refused", offset=kept[-1].end if kept else SEGMENT_BYTES))

    assert file.path.stat().st_size == (kept[-1].end if kept else 0)
    file.close()


def test_a_write_in_small_pieces_is_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pwritev = os.pwritev
    monkeypatch.setattr(os, "pwritev", lambda file, pieces, offset: pwritev(file, [b"".join(pieces)[:7]], offset))
    file = segment(tmp_path)

    put(file, b"a body of some length")
    file.close()

    assert [read_body(record) for record in scan(file.path).records] == [b"a body of some length"]


def test_a_disk_that_takes_no_byte_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "pwritev", lambda *_: 0)
    file = segment(tmp_path)

    with pytest.raises(OSError, match="No space left"):
        put(file, b"body")
    file.close()


def test_a_segment_that_was_only_begun_is_written_over_and_one_with_records_is_not(tmp_path: Path) -> None:
    (tmp_path / segment_name(0)).write_bytes(b"x" * SEGMENT_BYTES)
    begun = segment(tmp_path)
    put(begun, b"first")
    begun.close()
    before = begun.path.read_bytes()

    with pytest.raises(JournalError, match="has records already"):
        put(segment(tmp_path), b"other")

    assert begun.path.read_bytes() == before
    assert [read_body(record) for record in scan(begun.path).records] == [b"first"]


def test_closing_a_segment_closes_the_one_that_it_replaces(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    older = segment(tmp_path)
    put(older, b"first")
    newer = segment(tmp_path, 1, replaces=older)
    put(newer, b"second")

    newer.close()
    newer.close()

    assert len(os.listdir("/proc/self/fd")) == before
