from __future__ import annotations

from pathlib import Path

import pytest

from chockstone.engine.history.history_file import HistoryFile, HistoryFiles
from chockstone.engine.history.points import Measurement
from chockstone.engine.history.run_history import MAX_NAMES, MAX_UNWRITTEN, SERVER_NAMES, RunHistory, TooManyNames

RUN = "s:train:0"


@pytest.fixture
def history(tmp_path: Path) -> RunHistory:
    return RunHistory(RUN, HistoryFiles(tmp_path).of(RUN), birth="b")


def loss(step: int) -> Measurement:
    return Measurement(1.0, step, {"loss": float(step)})


def reward(step: int, name: str = "reward") -> Measurement:
    return Measurement(1.0, step, {name: 1.0})


def again(history: RunHistory, *, is_whole: bool = True) -> RunHistory:
    """As the next server finds it."""
    found = history.file.read()
    fresh = RunHistory(RUN, history.file, birth="b")
    fresh.take(found.points, size_bytes=found.size_bytes, is_whole=is_whole)
    return fresh


def write(history: RunHistory) -> None:
    points, history.unwritten = history.unwritten, []
    history.write(points, synced=False)


def test_positions_grow_by_one_over_both_sources(history: RunHistory) -> None:
    first = history.add_server(3, loss(1))
    rest = history.add_client([reward(1), reward(2)])
    last = history.add_server(5, loss(2))

    assert first is not None and last is not None
    assert [point.position for point in (first, *rest, last)] == [1, 2, 3, 4]
    assert [point.sequence for point in (first, *rest, last)] == [3, None, None, 5]
    assert history.cursor == 4


def test_an_operation_is_recorded_once(history: RunHistory) -> None:
    history.add_server(3, loss(1))

    assert history.add_server(3, loss(9)) is None
    assert history.add_server(2, loss(9)) is None
    assert history.cursor == 1


def test_a_history_continues_after_its_file(history: RunHistory) -> None:
    history.add_server(3, loss(1))
    history.add_client([reward(1)])
    write(history)

    fresh = again(history)

    assert fresh.add_server(3, loss(1)) is None
    point = fresh.add_server(4, loss(2))
    assert point is not None and point.position == 3
    write(fresh)
    assert [each.position for each in history.file.read().points] == [1, 2, 3]


def test_operations_after_a_loss_of_the_journal_are_new(history: RunHistory) -> None:
    for sequence in (3, 4, 5):
        history.add_server(sequence, loss(sequence))

    history.rewind(4)

    assert history.add_server(3, loss(3)) is None
    point = history.add_server(4, loss(9))
    assert point is not None and point.position == 4


def test_a_damaged_file_is_written_anew(history: RunHistory) -> None:
    history.add_server(3, loss(1))
    history.add_server(4, loss(2))
    write(history)
    history.file.path.write_bytes(history.file.path.read_bytes()[:-9])

    fresh = again(history, is_whole=False)
    fresh.add_server(4, loss(2))
    write(fresh)

    contents = history.file.read()
    assert (contents.damaged_lines, [each.sequence for each in contents.points]) == (0, [3, 4])


def test_a_file_that_was_deleted_by_hand_costs_its_points_only(history: RunHistory) -> None:
    history.add_server(3, loss(1))
    write(history)
    history.file.delete()

    history.add_server(4, loss(2))
    write(history)

    assert [each.sequence for each in history.file.read().points] == [4]


def test_a_long_history_is_thinned_in_its_file(history: RunHistory) -> None:
    for sequence in range(1, 9001):
        history.add_server(sequence, loss(sequence))
        if sequence % 500 == 0:
            write(history)

    points = history.file.read().points
    assert len(points) <= 4000
    assert (points[0].position, points[-1].position, sum(each.count for each in points)) == (1, 9000, 9000)
    fresh = again(history)
    fresh.add_server(9001, loss(1))
    write(fresh)
    assert fresh.file.read().points[-1].position == 9001


def test_a_thinning_that_fails_is_tried_again_and_costs_no_point(
    history: RunHistory, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for sequence in range(1, 3001):
        history.add_server(sequence, loss(sequence))
    write(history)
    replace = HistoryFile.replace

    def full(*_: object, **__: object) -> int:
        raise OSError("no space left")

    monkeypatch.setattr(HistoryFile, "replace", full)
    for sequence in range(3001, 4101):
        history.add_server(sequence, loss(sequence))
        if sequence % 50 == 0:
            write(history)
    assert caplog.text.count("history not thinned") == 1
    assert len(history.file.read().points) == 4100

    monkeypatch.setattr(HistoryFile, "replace", replace)
    history.add_server(4101, loss(1))
    write(history)

    points = history.file.read().points
    assert len(points) < 4000 and sum(point.count for point in points) == 4101


def test_a_client_may_not_use_up_the_series(history: RunHistory) -> None:
    free = MAX_NAMES - len(SERVER_NAMES)
    history.add_client([reward(1, f"series{index}") for index in range(free)])

    with pytest.raises(TooManyNames):
        history.add_client([reward(2), reward(2, "one-more")])

    assert history.cursor == free
    history.add_client([reward(3, "series0")])
    point = history.add_server(1, Measurement(1.0, 1, {"loss": 1.0, "entropy": 2.0, "grad_norm": 3.0}))
    assert point is not None and point.values == {"loss": 1.0, "grad_norm": 3.0}


def test_recent_points_are_read_without_the_file(history: RunHistory) -> None:
    for sequence in range(1, 1001):
        history.add_server(sequence, loss(sequence))

    assert history.recent(0) is None
    newest = history.recent(990)
    assert newest is not None and [each.position for each in newest] == list(range(991, 1001))
    assert history.recent(1000) == []
    assert [each.position for each in history.in_memory()] == list(range(1, 1001))
    write(history)
    assert len(history.in_memory()) < 1000


def test_points_that_the_disk_does_not_take_are_given_up_at_last(history: RunHistory) -> None:
    for sequence in range(1, MAX_UNWRITTEN + 100):
        history.add_server(sequence, loss(1))

    points, history.unwritten = history.unwritten, []
    history.put_back(points)

    assert len(history.unwritten) == MAX_UNWRITTEN
    assert history.unwritten[-1].position == MAX_UNWRITTEN + 99


def test_a_readonly_history_leaves_the_disk_alone(history: RunHistory) -> None:
    history.take_readonly()
    history.add_server(1, loss(1))

    write(history)

    assert not history.file.path.exists()
    assert history.recent(0)
