from __future__ import annotations

import logging
from pathlib import Path

import pytest

from chockstone.engine.tracking.sent_marks import MAX_SAVES, SentMark, SentMarks

RUN = "s:train:0"


def test_a_mark_is_read_back_by_the_next_server(tmp_path: Path) -> None:
    mark = SentMark(position=7, saves=(1, 3), learning_rate=1e-4)
    SentMarks(tmp_path / "new").write(RUN, mark)

    assert SentMarks(tmp_path / "new").read(RUN) == mark


def test_a_run_without_a_mark_is_sent_from_its_first_point(tmp_path: Path) -> None:
    assert SentMarks(tmp_path).read(RUN) == SentMark()


@pytest.mark.parametrize("content", ["", "[]", '{"position": null}', "\x00", '{"position": 1, "saves": 5}'])
def test_a_damaged_mark_is_logged_and_counts_as_none(
    tmp_path: Path, content: str, caplog: pytest.LogCaptureFixture
) -> None:
    marks = SentMarks(tmp_path)
    marks.write(RUN, SentMark(position=7))
    (file,) = tmp_path.iterdir()
    file.write_text(content)

    with caplog.at_level(logging.WARNING):
        assert marks.read(RUN) == SentMark()
    assert "mark of a tracker not readable" in caplog.text


def test_a_mark_remembers_the_newest_saves_only() -> None:
    mark = SentMark()
    for number in range(MAX_SAVES + 10):
        mark = mark.after(position=number, saves=(number,), learning_rate=None)

    assert mark.saves == tuple(range(10, MAX_SAVES + 10))


def test_the_mark_of_a_removed_run_is_forgotten(tmp_path: Path) -> None:
    marks = SentMarks(tmp_path)
    marks.write(RUN, SentMark(position=7))
    marks.forget(RUN)
    marks.forget(RUN)

    assert list(tmp_path.iterdir()) == []


def test_marks_of_runs_that_are_gone_are_deleted(tmp_path: Path) -> None:
    marks = SentMarks(tmp_path)
    marks.note_caught_up(1.0)
    for run_id in (RUN, "s:train:1", "other:train:0"):
        marks.write(run_id, SentMark(position=7))

    marks.keep_only({RUN, "new:train:0"})

    assert sorted(path.name for path in tmp_path.iterdir()) == ["caught-up", "s.train.0.json"]
    SentMarks(tmp_path / "absent").keep_only(set())


def test_the_time_when_all_was_sent_is_kept(tmp_path: Path) -> None:
    marks = SentMarks(tmp_path / "new")

    assert marks.caught_up_at() is None
    marks.note_caught_up(1_800_000_000.5)
    assert marks.caught_up_at() == 1_800_000_000.5
