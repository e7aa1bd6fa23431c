"""Journals that lost what was acknowledged: the run fails, or goes on because somebody said so."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest

from chockstone.catalog import Catalog, RunRow, RunState
from chockstone.catalog.tables.engine import JournalMarkRow
from chockstone.engine.config import Durability
from chockstone.engine.journal.scan import Record, scan, segments_in
from chockstone.engine.ownership.data_directory import JOURNAL_MARKS
from support.engine.lives import RARELY, Life, lived
from support.engine.making import RUN, until

CONTINUE = Durability(steps=10**6, replay_seconds=1e9, on_journal_loss="continue")
FOLDER = Path("journal", "runs", RUN.replace(":", "."))


def operations_in(home: Path) -> list[Record]:
    return [
        record
        for path in segments_in(home / FOLDER)
        for record in scan(path).records
        if record.head["kind"] == "operation"
    ]


def cut(home: Path, operations: int) -> None:
    """Take the last operations away, with all that came after the first of them."""
    place = operations_in(home)[-operations]._place
    assert place is not None
    for path in segments_in(home / FOLDER):
        if path > place.path:
            path.unlink()
    with place.path.open("r+b") as file:
        file.truncate(place.offset)


async def crashed_after(home: Path, *numbers: int) -> tuple[Path, Life]:
    async with lived(home) as life:
        await life.make()
        await life.train(*numbers)
        await life.written()
        return life.crash(), life


async def until_state(life: Life, state: RunState) -> RunRow:
    """The run's row once it has this state; an assertion fails when nothing can change it any more."""
    turns = 1000  # of the loop after all runs are woken and idle: a row is written behind that
    while (row := await life.catalog.runs.get(RUN)).state != state and turns:
        runs = life.engine.runs
        turns -= runs.are_all_woken and all(run.lane.is_idle() for run in runs)
        await asyncio.sleep(0.002)
    assert row.state == state
    return row


async def lost_row(life: Life) -> RunRow:
    return await until_state(life, "lost")


async def test_a_journal_that_lost_its_end_fails_the_run_and_says_how_much_is_missing(tmp_path: Path) -> None:
    left, life = await crashed_after(tmp_path / "a", 1, 2, 3)
    cut(left, 3)
    before = {path: path.read_bytes() for path in segments_in(left / FOLDER)}

    async with lived(left, after=life) as second:
        row = await lost_row(second)
        assert row.failure is not None and "3 operations that the server had acknowledged are missing" in row.failure
        assert "--on-journal-loss continue" in row.failure
        assert await second.engine.wake(RUN) is None, "it stays so"
        [receipt] = await second.receipts()
        assert (receipt.lost, receipt.replayed, receipt.matched) == (3, 0, 0)
        assert "the run was not recovered" in receipt.notes[0]
    assert {path: path.read_bytes() for path in segments_in(left / FOLDER)} == before, "nothing is written there"

    async with lived(left, after=life) as third:
        assert (await lost_row(third)).failure == row.failure
        assert len(await third.receipts()) == 1, "said once"


async def test_the_checkpoint_to_resume_from_is_named(tmp_path: Path) -> None:
    async with lived(tmp_path / "a") as life:
        await life.make()
        await life.train(1)
        await life.result(await life.ask_save("kept"))
        await life.train(2)
        await life.written()
        left = life.crash()
    cut(left, 1)

    async with lived(left) as second:
        assert f"Resume from 'tinker://{RUN}/weights/kept'" in str((await lost_row(second)).failure)


async def test_it_goes_on_without_what_was_lost_when_the_operator_says_so(tmp_path: Path) -> None:
    left, life = await crashed_after(tmp_path / "a", 1, 2, 3)
    cut(left, 2)
    async with lived(left, after=life) as refused:
        await lost_row(refused)

    async with lived(left, after=life, durability=CONTINUE) as second:
        await until_state(second, "active")
        assert await second.state() == (3, 0, 2), "two steps of three"
        assert [receipt.lost for receipt in await second.receipts()] == [2, 2, 2]
        assert "continues without them" in (await second.receipts())[1].notes[0]
        await second.train(10)
        await second.written()
        again = second.crash()

    async with lived(again, after=second) as third:  # by default settings
        assert await third.state() == (13, 0, 3)
        assert (await third.receipts())[0].lost == 0


async def test_it_goes_on_when_the_journal_is_put_back(tmp_path: Path) -> None:
    left, life = await crashed_after(tmp_path / "a", 1, 2, 3)
    shutil.copytree(left / FOLDER, tmp_path / "saved")
    cut(left, 1)
    async with lived(left, after=life) as refused:
        await lost_row(refused)
    shutil.rmtree(left / FOLDER)
    shutil.copytree(tmp_path / "saved", left / FOLDER)

    async with lived(left, after=life) as second:
        await until_state(second, "active")
        assert await second.state() == (6, 0, 3)
        assert (await second.receipts())[0].lost == 0


async def test_the_catalog_knows_it_where_the_data_directory_is_an_older_copy(tmp_path: Path) -> None:
    async with lived(tmp_path / "a") as life:
        await life.make()
        await life.train(1)
        await life.written()
        older = shutil.copytree(tmp_path / "a" / FOLDER, tmp_path / "older")
        await life.train(2)
        await life.engine._core.marks.flush()
        mark = await life.catalog.journal_marks.get(RUN)
        assert mark is not None and mark.operations == 5  # the opening, two passes and two steps
        left = life.crash()
    shutil.rmtree(left / FOLDER)
    shutil.copytree(older, left / FOLDER)
    shutil.rmtree(left / JOURNAL_MARKS)

    async with lived(left) as second:
        assert "2 operations" in str((await lost_row(second)).failure)


async def test_a_result_that_is_lost_alone_is_found_out_again(tmp_path: Path) -> None:
    left, life = await crashed_after(tmp_path / "a", 1, 2)
    cut_last_result(left / FOLDER)

    async with lived(left, after=life) as second:
        assert await second.state() == (3, 0, 2)
        assert [receipt.lost for receipt in await second.receipts()] == [0]


async def test_operations_that_are_missing_behind_the_archive_are_not_skipped(tmp_path: Path) -> None:
    async with lived(tmp_path / "a") as life:
        live = await life.make()
        await life.train(1)
        assert await life.engine._core.archives.take(live, live.last_begun)
        await life.train(2)
        live.journal.rotate(live.head())
        await life.train(3)
        await life.written()
        left = life.crash()
    segments_in(left / FOLDER)[-2].unlink()

    async with lived(left) as second:
        live = await second.run()
        await until(lambda: live.is_lost)
        assert "lacks operations between" in live.state.reason


def cut_last_result(folder: Path) -> None:
    path = segments_in(folder)[-1]
    last = scan(path).records[-1]
    assert last.head["kind"] == "result"
    assert last._place is not None
    with path.open("r+b") as file:
        file.truncate(last._place.offset)


@pytest.mark.parametrize("has_all_results", [True, False])
async def test_an_archive_that_is_newer_than_the_journal_is_gone_on_from_and_its_numbers_are_not_used_again(
    tmp_path: Path, has_all_results: bool
) -> None:
    async with lived(tmp_path / "a", durability=Durability(steps=2, replay_seconds=1e9)) as life:
        await life.make()
        await life.train_slowly(1)
        await life.written()
        early = shutil.copytree(tmp_path / "a" / FOLDER, tmp_path / "early")
        await life.train_slowly(2, 3)
        await until(lambda: len(life.recovery_archives()) == 1)
        await life.written()
        left = life.crash()
    shutil.rmtree(left / FOLDER)
    shutil.copytree(early, left / FOLDER)
    if not has_all_results:
        cut_last_result(left / FOLDER)

    async with lived(left, after=life) as refused:
        await lost_row(refused)
    async with lived(left, after=life, durability=CONTINUE) as second:
        await until_state(second, "active")
        assert await second.state() == (3, 0, 2), "what the archive holds"
        await second.train(10)
        await second.written()
        again = second.crash()
    async with lived(again, after=second, durability=RARELY) as third:
        assert await third.state() == (13, 0, 3)


async def test_a_run_that_continued_without_its_end_is_not_refused_again_by_the_next_server(tmp_path: Path) -> None:
    """Also when nobody asked the run for anything meanwhile."""
    async with lived(tmp_path / "a", durability=Durability(steps=2, replay_seconds=1e9)) as life:
        await life.make()
        early = shutil.copytree(tmp_path / "a" / FOLDER, tmp_path / "early")
        await life.train_slowly(1, 2)
        await until(lambda: len(life.recovery_archives()) == 1)
        await life.written()
        left = life.crash()
    shutil.rmtree(left / FOLDER)
    shutil.copytree(early, left / FOLDER)

    async with lived(left, after=life, durability=CONTINUE) as second:
        assert await second.state() == (3, 0, 2)
        await second.written()
        again = second.crash()
    async with lived(again, after=second, durability=RARELY) as third:
        assert await third.state() == (3, 0, 2)
        await third.train(10)
        assert await third.state() == (13, 0, 3)


async def test_a_journal_of_before_that_ends_before_its_archive_has_lost_its_end(tmp_path: Path) -> None:
    async with lived(tmp_path / "a", durability=Durability(steps=1, replay_seconds=1e9)) as life:
        await life.make()
        early = shutil.copytree(tmp_path / "a" / FOLDER, tmp_path / "early")
        await life.train_slowly(1, 2)
        left = life.crash()
    shutil.rmtree(left / FOLDER)
    shutil.copytree(early, left / FOLDER)
    shutil.rmtree(left / JOURNAL_MARKS)

    async with await Catalog.open(f"sqlite:///{left}/catalog.sqlite3") as catalog:
        await catalog.journal_marks.remove(RUN)

    async with lived(left) as second:
        assert "lost its end" in str((await lost_row(second)).failure)


async def test_the_mark_of_a_run_that_is_over_goes(tmp_path: Path) -> None:
    async with lived(tmp_path / "a") as life:
        await life.make()
        await life.train(1)
        await life.engine._core.marks.flush()
        assert len(list((tmp_path / "a" / JOURNAL_MARKS).iterdir())) == 1

        await life.engine._core.unloader.discard(await life.run())

        assert list((tmp_path / "a" / JOURNAL_MARKS).iterdir()) == []
        assert await life.catalog.journal_marks.get(RUN) is None


async def test_a_mark_on_its_way_to_the_catalog_does_not_outlive_its_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with lived(tmp_path / "a") as life:
        await life.make()
        await life.train(1)
        marks, live = life.engine._core.marks, await life.run()
        put_many = life.catalog.journal_marks.put_many
        is_on_its_way, may_arrive = asyncio.Event(), asyncio.Event()

        async def put_slowly(rows: Mapping[str, JournalMarkRow]) -> None:
            is_on_its_way.set()
            await may_arrive.wait()
            await put_many(rows)

        monkeypatch.setattr(life.catalog.journal_marks, "put_many", put_slowly)
        marks._in_catalog.clear()
        flushing = asyncio.create_task(marks.flush([live]))
        arriving = asyncio.create_task(is_on_its_way.wait())
        await asyncio.wait({flushing, arriving}, return_when=asyncio.FIRST_COMPLETED)
        assert is_on_its_way.is_set(), "a flush writes the mark to the catalog"
        discarding = asyncio.create_task(life.engine._core.unloader.discard(live))
        await until(lambda: life.engine.runs.get(RUN) is None)
        await asyncio.wait({discarding}, timeout=0.3)  # it ends, unless it waits for the mark as it should
        may_arrive.set()
        await asyncio.gather(flushing, discarding)

        assert await life.catalog.journal_marks.get(RUN) is None
