"""The history of a run has each operation once, whatever is killed, parked, closed or removed."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from chockstone.engine.config import Durability, EngineLimits
from chockstone.engine.history.step_history import StepHistory
from chockstone.engine.journal.scan import scan_all
from support.engine.lives import EVERY_STEP, Life, lived
from support.engine.making import RUN, lose_worker, until

NUMBERS = (8, 16, 4, 20, 12)


async def shown(life: Life, run_id: str = RUN) -> list[tuple[Any, ...]]:
    """What the history of the run has that a repetition repeats."""
    page = await life.engine.history.read(run_id, limit=10_000)
    assert not page.has_more
    sequences = [each.sequence or 0 for each in page.points]
    assert sequences == sorted(set(sequences)), "an operation is recorded once"
    return [(each.position, each.step, dict(each.values)) for each in page.points]


async def uninterrupted(home: Path, **facts: Any) -> list[tuple[Any, ...]]:
    async with lived(home.with_name("uninterrupted"), **facts) as life:
        await life.make()
        await life.train(*NUMBERS)
        return await shown(life)


def files(home: Path) -> list[str]:
    directory = home / "history"
    return sorted(path.name for path in directory.iterdir()) if directory.exists() else []


async def test_each_operation_is_a_point(home: Path) -> None:
    async with lived(home) as life:
        await life.make()
        await life.train(8, 16)

        assert await shown(life) == [
            (1, 0, {"loss": 2.0, "loss:sum": 2.0, "tokens": 8.0, "seconds": 0.0}),
            (2, 1, {"weight": 8.0, "seconds": 0.0}),
            (3, 1, {"loss": 4.0, "loss:sum": 4.0, "tokens": 16.0, "seconds": 0.0}),
            (4, 2, {"weight": 24.0, "seconds": 0.0}),
        ]


@pytest.mark.parametrize("killed_after", [0, 1, 3, 5])
async def test_a_killed_server_loses_no_point(home: Path, killed_after: int) -> None:
    """Nothing was written yet: all points come from the journal."""
    expected = await uninterrupted(home)
    async with lived(home) as first:
        await first.make()
        await first.train(*NUMBERS[:killed_after])
        await first.written()
        assert not files(home)
        left = first.crash()

    async with lived(left, after=first) as second:
        await second.train(*NUMBERS[killed_after:])
        await second.state()

        assert await shown(second) == expected


async def test_what_was_written_before_the_kill_is_not_recorded_again(home: Path) -> None:
    expected = await uninterrupted(home)
    async with lived(home) as first:
        live = await first.make()
        await first.train(*NUMBERS[:2])
        await first.engine.history.sync(live.history)
        await first.train(*NUMBERS[2:3])
        await first.written()
        left = first.crash()
    async with lived(left, after=first) as second:
        await second.state()  # all of it is replayed
        await second.train(*NUMBERS[3:])
        assert await shown(second) == expected
        await second.written()
        again = second.crash()

    async with lived(again, after=second) as third:
        await third.state()
        assert await shown(third) == expected


async def test_a_result_that_did_not_reach_the_journal_is_a_point_once(home: Path) -> None:
    async with lived(home) as first:
        live = await first.make()
        await first.train(5)
        await first.result(await first.ask_pass(7))
        expected = await shown(first)
        await first.engine.history.sync(live.history)
        await first.written()
        left = first.crash()
    last = [record for scan in scan_all(left / first.journal().relative_to(home)) for record in scan.records][-1]
    assert last.head["kind"] == "result" and last._place is not None
    os.truncate(last._place.path, last._place.offset)

    async with lived(left, after=first) as second:
        await second.state()
        assert await shown(second) == expected


async def test_a_worker_that_dies_repeats_no_point(home: Path) -> None:
    expected = await uninterrupted(home)
    async with lived(home) as life:
        await life.make()
        await life.train(*NUMBERS[:3])
        lose_worker(life.engine, life.backend)
        await life.train(*NUMBERS[3:])

        assert await shown(life) == expected


async def test_history_is_durable_before_the_journal_drops_its_results(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed between the recovery archive and the write of the history: the journal still has what the file lacks."""
    expected = await uninterrupted(home, durability=EVERY_STEP)
    left: list[Path] = []
    async with lived(home, durability=EVERY_STEP) as first:
        await first.make()
        await first.train_slowly(*NUMBERS[:3])
        for request_id in first.asked:
            first.engine.futures.forget(request_id)
        sync = StepHistory.sync

        async def killed_here(history: StepHistory, run: Any) -> None:
            await first.written()
            if not left and first.backend.runs[RUN].steps == 4:
                left.append(first.crash())
            await sync(history, run)

        monkeypatch.setattr(StepHistory, "sync", killed_here)
        await first.train_slowly(NUMBERS[3])
    assert left
    monkeypatch.undo()

    async with lived(left[0], after=first, durability=EVERY_STEP) as second:
        await second.train_slowly(NUMBERS[4])
        assert await shown(second) == expected


async def test_points_outlive_the_segments_that_they_came_from(home: Path) -> None:
    expected = await uninterrupted(home, durability=EVERY_STEP)
    async with lived(home, durability=EVERY_STEP) as first:
        await first.make()
        for number in NUMBERS:
            await first.train_slowly(number)
            for request_id in first.asked:
                first.engine.futures.forget(request_id)
        await first.written()
        await until(lambda: len(list(first.journal().iterdir())) < 4)
        left = first.crash()
        records = [
            record.head for scan in scan_all(left / first.journal().relative_to(home)) for record in scan.records
        ]
    assert len([head for head in records if "measured" in head]) < len(expected)

    async with lived(left, after=first) as second:
        assert await shown(second) == expected


async def test_a_parked_run_has_its_history_without_being_woken(home: Path) -> None:
    async with lived(home) as first:
        live = await first.make()
        await first.train(5)
        expected = await shown(first)
        assert await first.engine._core.registry.park(live)
        left = first.crash()

    async with lived(left, after=first) as second:
        assert second.engine.runs.get(RUN) is None
        assert await shown(second) == expected


async def test_a_run_that_finds_no_room_at_the_start_has_its_history(home: Path) -> None:
    async with lived(home) as first:
        await first.make()
        await first.train(5)
        await first.make(1)
        await first.train(7, run_id="s:train:1")
        expected = [await shown(first), await shown(first, "s:train:1")]
        await first.written()
        left = first.crash()

    async with lived(left, after=first, limits=EngineLimits(runs=1)) as second:
        await until(lambda: second.engine.runs.are_all_woken)
        assert len(second.engine.runs) == 1
        assert [await shown(second), await shown(second, "s:train:1")] == expected


async def test_a_closed_run_keeps_its_history(home: Path) -> None:
    async with lived(home) as first:
        live = await first.make()
        await first.train(5)
        expected = await shown(first)
        await first.result(await first.engine.training.close(live))
        left = first.crash()

    async with lived(left, after=first) as second:
        assert await shown(second) == expected


async def test_a_removed_run_has_no_history(home: Path) -> None:
    async with lived(home) as life:
        live = await life.make()
        await life.train(5)
        await life.engine.history.sync(live.history)
        assert files(home) == ["s.train.0.history"]

        await life.engine.remove_run(await life.catalog.runs.get(RUN), by="local")

        assert files(home) == []
        assert await shown(life) == []


async def test_histories_of_runs_that_no_longer_exist_are_deleted(home: Path) -> None:
    async with lived(home) as life:
        live = await life.make()
        await life.train(5)
        await life.engine.history.sync(live.history)
        kept = home / "history" / "s.train.0.history"
        for name in ("gone.train.0", "new.train.0"):
            shutil.copyfile(kept, home / "history" / f"{name}.history")
        for path in (kept, home / "history" / "gone.train.0.history"):
            os.utime(path, (5, 5))

        await life.engine._core.unloader.sweep()

        assert files(home) == ["new.train.0.history", "s.train.0.history"]


async def test_a_run_that_is_created_again_starts_a_history_of_its_own(home: Path) -> None:
    async with lived(home) as life:
        live = await life.make()
        await life.train(5)
        await life.engine.history.sync(live.history)
        await life.engine.remove_run(await life.catalog.runs.get(RUN), by="local")

        await life.make()
        await life.train(7)

        assert [values.get("tokens") for *_, values in await shown(life)] == [7.0, None]


@pytest.mark.parametrize("content", [b"", b"rubbish\n" * 100, os.urandom(2000)])
async def test_a_damaged_history_costs_points_and_no_run(home: Path, content: bytes) -> None:
    async with lived(home, durability=EVERY_STEP) as first:
        await first.make()
        await first.train_slowly(*NUMBERS[:3])
        for request_id in first.asked:
            first.engine.futures.forget(request_id)
        await first.train_slowly(NUMBERS[3])
        await first.written()
        left = first.crash()
    (left / "history" / "s.train.0.history").write_bytes(content)

    async with lived(left, after=first, durability=EVERY_STEP) as second:
        await second.train(NUMBERS[4])
        weight, _, steps = await second.state()
        points = await shown(second)

    assert (weight, steps) == (sum(NUMBERS), len(NUMBERS))
    assert points[-2][2]["tokens"] == NUMBERS[4]


async def test_a_disk_that_takes_no_history_stops_no_run(home: Path) -> None:
    home.mkdir()
    (home / "history").write_text("in the way of the directory")
    async with lived(home, durability=EVERY_STEP) as life:
        await life.make()
        await life.train_slowly(*NUMBERS)

        assert len(await shown(life)) == 2 * len(NUMBERS)
        assert len(life.recovery_archives()) == 2


async def test_without_a_journal_points_are_kept_as_well(home: Path) -> None:
    async with lived(home, durability=Durability(journal="off")) as first:
        await first.make()
        await first.train(5)
        expected = await shown(first)
    assert len(expected) == 2

    async with lived(home, after=first, durability=Durability(journal="off")) as second:
        assert await shown(second) == expected
