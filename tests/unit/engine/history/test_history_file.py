from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from chockstone.engine.history.history_file import HistoryFile, HistoryFiles, HistoryTooNew, _pack
from chockstone.engine.history.points import HistoryPoint

RUN = "s:train:0"


def point(position: int) -> HistoryPoint:
    return HistoryPoint(position, position, 1.5, position, "server", {"loss": position / 2})


@pytest.fixture
def file(tmp_path: Path) -> HistoryFile:
    return HistoryFiles(tmp_path / "history").of(RUN)


def test_a_file_that_is_not_there_is_empty(file: HistoryFile) -> None:
    contents = file.read()

    assert (contents.birth, contents.points, contents.damaged_lines) == (None, [], 0)


def test_points_are_read_as_they_were_written(file: HistoryFile) -> None:
    size = file.replace([point(1)], birth="b")
    size = file.append([point(2), point(3)], at_bytes=size, synced=True)

    contents = file.read()

    assert (contents.birth, contents.points) == ("b", [point(1), point(2), point(3)])
    assert contents.size_bytes == size == file.path.stat().st_size
    assert not contents.damaged_lines


def test_a_damaged_line_costs_one_point(file: HistoryFile) -> None:
    file.replace([point(1), point(2), point(3)], birth="b")
    lines = file.path.read_bytes().split(b"\n")
    lines[2] = lines[2].replace(b"1.0", b"9.0")
    file.path.write_bytes(b"\n".join(lines))

    contents = file.read()

    assert (contents.points, contents.damaged_lines) == ([point(1), point(3)], 1)


def test_a_torn_end_costs_the_last_point(file: HistoryFile) -> None:
    size = file.replace([point(1), point(2)], birth="b")
    os.truncate(file.path, size - 5)

    contents = file.read()

    assert (contents.points, contents.damaged_lines) == ([point(1)], 1)


@pytest.mark.parametrize("content", [b"", b"\n\n\n", b"\0" * 100, os.urandom(5000), b"[" * 10_000, b"null\n" * 9])
def test_rubbish_is_no_history(file: HistoryFile, content: bytes) -> None:
    file.path.parent.mkdir()
    file.path.write_bytes(content)

    assert file.read().points == []


def test_lines_that_are_whole_and_mean_nothing_are_skipped(file: HistoryFile) -> None:
    size = file.replace([point(1)], birth="b")
    extra = b"".join([_pack({"position": 2}), _pack({"history": 1}), _pack(point(2).to_record())])
    file.path.write_bytes(file.path.read_bytes() + extra)

    contents = file.read()

    assert size < contents.size_bytes
    assert (contents.points, contents.damaged_lines) == ([point(1), point(2)], 2)


def test_a_point_that_was_written_twice_is_read_once(file: HistoryFile) -> None:
    size = file.replace([point(1)], birth="b")
    file.append([point(2), point(2), point(1), point(3)], at_bytes=size, synced=False)

    assert file.read().points == [point(1), point(2), point(3)]


def test_the_file_of_another_run_is_not_taken(file: HistoryFile, tmp_path: Path) -> None:
    HistoryFiles(tmp_path / "history").of("other:train:0").replace([point(1)], birth="b")
    os.rename(tmp_path / "history" / "other.train.0.history", file.path)

    contents = file.read()

    assert (contents.points, contents.damaged_lines) == ([], 1)


def test_the_file_of_a_later_version_is_left_alone(file: HistoryFile) -> None:
    file.path.parent.mkdir()
    file.path.write_bytes(_pack({"history": 2, "run_id": RUN, "birth": "b"}) + b"something new\n")

    with pytest.raises(HistoryTooNew, match="version 2"):
        file.read()


def test_what_a_failed_write_left_is_overwritten(file: HistoryFile) -> None:
    size = file.replace([point(1)], birth="b")
    with file.path.open("ab") as opened:
        opened.write(b"half a li")

    file.append([point(2)], at_bytes=size, synced=False)

    contents = file.read()
    assert (contents.points, contents.damaged_lines) == ([point(1), point(2)], 0)


def test_a_write_continues_after_a_short_one(file: HistoryFile, monkeypatch: pytest.MonkeyPatch) -> None:
    size = file.replace([point(1)], birth="b")
    whole = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda descriptor, data, offset: whole(descriptor, data[:7], offset))

    file.append([point(2), point(3)], at_bytes=size, synced=False)

    assert file.read().points == [point(1), point(2), point(3)]


def test_a_failed_rewrite_leaves_the_file_as_it_was(file: HistoryFile, monkeypatch: pytest.MonkeyPatch) -> None:
    file.replace([point(1)], birth="b")

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(OSError, match="no space"):
        file.replace([point(9)], birth="b")

    assert file.read().points == [point(1)]


def test_a_deleted_file_is_gone_with_what_a_rewrite_left(file: HistoryFile) -> None:
    file.replace([point(1)], birth="b")
    file.path.with_name(file.path.name + ".unfinished").write_bytes(b"x")

    file.delete()
    file.delete()

    assert list(file.path.parent.iterdir()) == []


@pytest.mark.parametrize(
    "run_id",
    [
        *("", "..", "../s:train:0", "s:train:0/../x", "s.train.0", "/etc/passwd", "s:train:x", "a:b:train:0"),
        *("x" * 101 + ":train:0", "s:train:" + "9" * 19, "s:train:0\n", "s:train:0\0", "s%2f:train:0", "s:train:٣"),
    ],
)
def test_an_id_that_is_not_of_a_run_names_no_file(tmp_path: Path, run_id: str) -> None:
    with pytest.raises(ValueError, match="is not the id of a run"):
        HistoryFiles(tmp_path).of(run_id)


def test_runs_are_listed_by_their_files(tmp_path: Path) -> None:
    files = HistoryFiles(tmp_path / "history")
    assert files.list_runs(written_before=1e12) == []
    for run_id in (RUN, "s:train:1"):
        files.of(run_id).replace([point(1)], birth="b")
    (tmp_path / "history" / "other.txt").touch()
    (tmp_path / "history" / "s.train.2.history.unfinished").touch()
    os.utime(files.of(RUN).path, (5, 5))

    assert files.list_runs(written_before=1e12) == [RUN, "s:train:1"]
    assert files.list_runs(written_before=6) == [RUN]


def test_only_what_was_appended_is_parsed_again(file: HistoryFile, monkeypatch: pytest.MonkeyPatch) -> None:
    size = file.replace([point(1), point(2)], birth="b")
    known = file.read()
    size = file.append([point(3)], at_bytes=size, synced=False)
    parsed: list[object] = []
    from_record = HistoryPoint.from_record
    monkeypatch.setattr(HistoryPoint, "from_record", lambda record: parsed.append(record) or from_record(record))

    again = file.read(known)

    assert (again.points, again.size_bytes) == ([point(1), point(2), point(3)], size)
    assert len(parsed) == 1
    assert known.points == [point(1), point(2)]
    assert file.read(again).points == again.points


def test_a_file_that_was_written_anew_is_parsed_anew(file: HistoryFile) -> None:
    file.replace([point(1), point(2)], birth="b")
    known = file.read()

    file.replace([point(2), point(3), point(4)], birth="b")

    assert file.read(known).points == [point(2), point(3), point(4)]
    file.delete()
    assert file.read(known).points == []


def test_a_torn_end_is_parsed_once_it_is_whole(file: HistoryFile) -> None:
    size = file.replace([point(1)], birth="b")
    with file.path.open("ab") as opened:
        opened.write(_pack(point(2).to_record())[:-9])
    known = file.read()
    file.append([point(2)], at_bytes=size, synced=False)

    assert (known.points, known.damaged_lines) == ([point(1)], 1)
    assert (file.read(known).points, file.read(known).damaged_lines) == ([point(1), point(2)], 0)
