from __future__ import annotations

from pathlib import Path

import pytest

from chockstone.engine.history.file_cache import FileCache
from chockstone.engine.history.history_file import HistoryFile, HistoryFiles
from chockstone.engine.history.points import HistoryPoint


def point(position: int) -> HistoryPoint:
    return HistoryPoint(position, position, 1.5, position, "server", {"loss": position / 2})


@pytest.fixture
def files(tmp_path: Path) -> HistoryFiles:
    return HistoryFiles(tmp_path / "history")


def written(files: HistoryFiles, number: int, points: int) -> HistoryFile:
    file = files.of(f"s:train:{number}")
    file.replace([point(position) for position in range(1, points + 1)], birth="b")
    return file


def test_points_are_those_of_the_file(files: HistoryFiles) -> None:
    cache, file = FileCache(), written(files, 0, 3)

    assert cache.read(file) == [point(1), point(2), point(3)]
    file.append([point(4)], at_bytes=file.path.stat().st_size, synced=False)
    assert cache.read(file) == [point(1), point(2), point(3), point(4)]
    written(files, 0, 2)
    assert cache.read(file) == [point(1), point(2)]
    file.delete()
    assert cache.read(file) == []


def test_a_file_that_did_not_change_is_parsed_once(files: HistoryFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    cache, file = FileCache(), written(files, 0, 3)
    cache.read(file)

    def parse(_: object) -> HistoryPoint:
        raise AssertionError("it is parsed again")

    monkeypatch.setattr(HistoryPoint, "from_record", parse)

    assert len(cache.read(file)) == 3


def test_the_files_that_were_used_last_stay(files: HistoryFiles) -> None:
    cache = FileCache(max_points=10)
    one, two, three, large = (written(files, number, points) for number, points in enumerate((4, 4, 4, 11)))

    for file in (one, two, one, three):
        cache.read(file)
    assert list(cache._contents) == [str(one.path), str(three.path)]
    assert len(cache.read(large)) == 11
    assert list(cache._contents) == [str(one.path), str(three.path)]
