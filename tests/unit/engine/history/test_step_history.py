from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import xxhash

from chockstone.engine.config import Busy
from chockstone.engine.history import step_history
from chockstone.engine.history.points import Measurement
from chockstone.engine.history.run_history import RunHistory
from chockstone.engine.history.step_history import StepHistory
from chockstone.wire.failures import BadRequest

RUN = "s:train:0"


def loss(step: int) -> Measurement:
    return Measurement(float(step), step, {"loss": float(step), "tokens": 10.0})


def reward(step: int, name: str = "reward") -> Measurement:
    return Measurement(float(step), step, {name: 0.5})


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "history"


@pytest.fixture
async def history(directory: Path) -> AsyncIterator[StepHistory]:
    made = StepHistory(directory)
    yield made
    await made.stop()


async def trained(history: StepHistory, steps: int, *, run_id: str = RUN) -> RunHistory:
    run = await history.create(run_id, birth="b")
    for step in range(1, steps + 1):
        history.record(run, step, loss(step))
    return run


async def positions(history: StepHistory, run_id: str = RUN, after: int = 0) -> list[int]:
    return [point.position for point in (await history.read(run_id, after=after, limit=10_000)).points]


async def test_a_point_is_read_at_once_and_written_soon(
    history: StepHistory, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step_history, "_WRITE_SECONDS", 0.0)
    keeping = asyncio.create_task(history.keep())
    await trained(history, 3)

    assert await positions(history) == [1, 2, 3]

    file = directory / "s.train.0.history"
    async with asyncio.timeout(10):
        while not file.exists() or b'"position":3' not in file.read_bytes():
            await asyncio.sleep(0.001)
    keeping.cancel()


async def test_pages_follow_a_cursor(history: StepHistory) -> None:
    run = await trained(history, 1200)
    await history.sync(run)

    seen, cursor, has_more = [], 0, True
    while has_more:
        page = await history.read(RUN, after=cursor, limit=500)
        seen += [point.position for point in page.points]
        cursor, has_more = page.cursor, page.has_more

    assert seen == list(range(1, 1201))
    assert (await history.read(RUN, after=cursor)).points == []
    assert (await history.read(RUN, after=cursor)).cursor == cursor


async def test_only_the_series_that_are_asked_for(history: StepHistory) -> None:
    run = await trained(history, 2)
    await history.record_client(RUN, [reward(2)], owner="ann")

    page = await history.read(RUN, names=["reward"])

    assert [point.values for point in page.points] == [{"reward": 0.5}]
    assert page.cursor == 3
    assert [point.values for point in (await history.read(RUN, names=["tokens"])).points] == [{"tokens": 10.0}] * 2
    del run


async def test_a_chart_gets_the_whole_run_in_few_points(history: StepHistory) -> None:
    run = await trained(history, 6000)
    await history.sync(run)

    page = await history.read(RUN, names=["loss"], max_points=100)

    assert len(page.points) <= 100
    assert (page.points[0].position, page.points[-1].position) == (1, 6000)
    assert (page.cursor, page.has_more) == (6000, False)
    assert sum(point.count for point in page.points) == 6000


async def test_a_run_without_points_has_an_empty_history(history: StepHistory) -> None:
    page = await history.read(RUN)

    assert (page.points, page.cursor, page.has_more) == ([], 0, False)
    with pytest.raises(ValueError, match="is not the id of a run"):
        await history.read("../../etc/passwd")


async def test_what_only_the_journal_has_is_added_once(history: StepHistory, directory: Path) -> None:
    run = await trained(history, 4)
    await history.sync(run)
    later = StepHistory(directory)

    recorded = [(sequence, loss(sequence)) for sequence in range(2, 8)]
    again = await later.complete(RUN, recorded, birth="b", next_sequence=9)
    later.record(again, 8, loss(8))

    page = await later.read(RUN)
    assert [point.sequence for point in page.points] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert [point.position for point in page.points] == [1, 2, 3, 4, 5, 6, 7, 8]
    await later.stop()
    assert await positions(StepHistory(directory)) == [1, 2, 3, 4, 5, 6, 7, 8]


async def test_a_run_that_is_created_again_starts_anew(history: StepHistory, directory: Path) -> None:
    await trained(history, 4)
    await history.stop()

    later = StepHistory(directory)
    run = await later.create(RUN, birth="c")
    assert await positions(later) == []
    later.record(run, 1, loss(1))
    await later.stop()

    assert await positions(StepHistory(directory)) == [1]


async def test_the_points_of_an_earlier_run_of_the_same_id_are_not_taken(history: StepHistory, directory: Path) -> None:
    await trained(history, 4)
    await history.stop()

    later = StepHistory(directory)
    run = await later.complete(RUN, [(1, loss(1))], birth="another", next_sequence=2)

    assert run.cursor == 1
    await later.stop()
    assert await positions(StepHistory(directory)) == [1]


async def test_points_of_clients_are_in_the_file_when_they_are_acknowledged(
    history: StepHistory, directory: Path
) -> None:
    run = await trained(history, 2)

    cursor = await history.record_client(RUN, [reward(2), reward(3)], owner="ann")

    assert cursor == 4
    assert await positions(StepHistory(directory)) == [1, 2, 3, 4]
    del run


async def test_clients_report_to_runs_that_are_not_live(history: StepHistory, directory: Path) -> None:
    await trained(history, 2)
    await history.stop()
    later = StepHistory(directory)

    assert await later.record_client(RUN, [reward(3)], owner="ann") == 3
    assert await later.record_client(RUN, [reward(4)], owner="ann") == 4

    assert await positions(later) == [1, 2, 3, 4]
    run = await later.complete(RUN, [(1, loss(1)), (2, loss(2)), (3, loss(3))], birth="b", next_sequence=4)
    assert run.cursor == 5
    await later.stop()


async def test_too_many_series_are_refused_with_nothing_recorded(history: StepHistory) -> None:
    with pytest.raises(BadRequest, match="more than 64 series"):
        await history.record_client(RUN, [reward(1, f"series{index}") for index in range(65)], owner="ann")

    assert await positions(history) == []


async def test_too_many_waiting_reports_are_refused(history: StepHistory) -> None:
    asked = [asyncio.ensure_future(history.record_client(RUN, [reward(step)], owner="ann")) for step in range(9)]

    found = await asyncio.gather(*asked, return_exceptions=True)

    assert sorted(each for each in found if isinstance(each, int)) == list(range(1, 9))
    assert [type(each) for each in found if not isinstance(each, int)] == [Busy]
    assert await history.record_client(RUN, [reward(9)], owner="ann") == 9


async def test_reports_to_many_runs_are_bounded_too(history: StepHistory) -> None:
    asked = [history.record_client(f"s:train:{number}", [reward(1)], owner=f"user{number}") for number in range(70)]

    found = await asyncio.gather(*asked, return_exceptions=True)

    assert found.count(1) == 64
    assert sum(isinstance(each, Busy) for each in found) == 6


async def test_one_owner_leaves_places_for_others(history: StepHistory) -> None:
    asked = [history.record_client(f"s:train:{number}", [reward(1)], owner="mallory") for number in range(70)]
    theirs = history.record_client(RUN, [reward(1)], owner="ann")

    *found, cursor = await asyncio.gather(*asked, theirs, return_exceptions=True)

    assert (found.count(1), sum(isinstance(each, Busy) for each in found)) == (16, 54)
    assert cursor == 2
    assert not history._posts and not history._owners_posts


async def test_new_points_are_published(history: StepHistory) -> None:
    with history.subscribe(RUN) as of_run, history.subscribe(None) as of_all:
        run = await trained(history, 2)
        await history.record_client(RUN, [reward(2)], owner="ann")

        assert [point.position for point in (await anext(of_run)).points] == [1, 2, 3]
        assert (await anext(of_all)).run_id == RUN
        await history.remove(RUN)
        assert of_run.has_ended and not of_all.has_ended
        await history.stop()
        assert of_all.has_ended
    del run


async def test_a_removed_run_leaves_no_file(history: StepHistory, directory: Path) -> None:
    run = await trained(history, 2)
    await history.sync(run)
    history.record(run, 3, loss(3))

    await history.remove(RUN)
    history.record(run, 4, loss(4))
    await history.sync(run)

    assert list(directory.iterdir()) == []
    assert await positions(history) == []


async def test_files_that_were_not_written_lately_are_listed(history: StepHistory, directory: Path) -> None:
    assert await history.list_runs(written_before=1e12) == []
    run = await trained(history, 1)
    await history.sync(run)
    os.utime(directory / "s.train.0.history", (5, 5))

    assert await history.list_runs(written_before=6) == [RUN]
    assert await history.list_runs(written_before=5) == []


async def test_a_damaged_file_costs_points_and_a_warning(
    history: StepHistory, directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await trained(history, 3)
    await history.stop()
    file = directory / "s.train.0.history"
    lines = file.read_bytes().split(b"\n")
    file.write_bytes(b"\n".join([lines[0], lines[1], b"rubbish", lines[3], b""]))

    later = StepHistory(directory)
    run = await later.complete(RUN, [(2, loss(2)), (3, loss(3)), (4, loss(4))], birth="b", next_sequence=5)

    assert "history damaged" in caplog.text
    assert run.cursor == 4
    assert [point.sequence for point in (await later.read(RUN)).points] == [1, 3, 4]
    await later.stop()
    assert [point.sequence for point in (await StepHistory(directory).read(RUN)).points] == [1, 3, 4]


async def test_a_file_of_a_later_version_is_read_only(
    history: StepHistory, directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    directory.mkdir()
    file = directory / "s.train.0.history"
    await trained(history, 1)
    await history.stop()
    content = file.read_bytes().replace(b'"history":1', b'"history":2')
    body = content.split(b"\n")[0][17:]
    file.write_bytes(b"%016x %b\n" % (xxhash.xxh3_64_intdigest(body), body))
    before = file.read_bytes()

    later = StepHistory(directory)
    run = await later.complete(RUN, [(1, loss(1))], birth="b", next_sequence=2)
    await later.stop()

    assert run.cursor == 1
    assert file.read_bytes() == before
    assert "new points are kept in memory only" in caplog.text


async def test_a_disk_that_takes_nothing_costs_no_point_once_it_does(
    history: StepHistory, directory: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    run = await trained(history, 2)
    directory.write_text("in the way of the directory")

    await history.sync(run)
    await history.sync(run)

    assert caplog.text.count("history not written") == 1
    assert await positions(history) == [1, 2]
    directory.unlink()
    await history.sync(run)
    assert await positions(StepHistory(directory)) == [1, 2]


async def test_a_cancelled_write_loses_nothing(history: StepHistory, directory: Path) -> None:
    run = await trained(history, 2)
    writing = asyncio.create_task(history.sync(run))
    await asyncio.sleep(0)

    writing.cancel()
    await asyncio.gather(writing, return_exceptions=True)
    await history.stop()

    assert await positions(StepHistory(directory)) == [1, 2]
