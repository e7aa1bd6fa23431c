"""Runs are parked, woken and unloaded; what they cost is what they are used for."""

from __future__ import annotations

import asyncio
import errno
import os
from datetime import timedelta
from pathlib import Path

import pytest

from chockstone.catalog import RunRow
from chockstone.engine.config import Busy, Durability, EngineLimits
from chockstone.engine.journal import journal
from chockstone.engine.journal.journal import JournalError
from chockstone.engine.journal.scan import Scan
from chockstone.engine.ownership.data_directory import RUN_JOURNALS
from chockstone.engine.runs.run_journal import RunJournal
from chockstone.wire.failures import ServerFailure
from support.engine.lives import RARELY, half_trained, lived
from support.engine.making import NOW, RUN, Clock, answer, make_run, until

HOUR = 3600.0


async def test_a_parked_run_costs_no_memory_and_comes_back_with_its_next_operation(home: Path) -> None:
    clock = Clock()
    async with lived(home, clock=clock) as life:
        await half_trained(life)
        clock.pass_seconds(HOUR)
        await life.engine.sessions.end_silent()
        assert life.backend.runs == {} and len(life.engine.runs) == 0
        assert (await life.catalog.runs.get(RUN)).state == "parked"

        assert (await life.told(await life.ask_step()))["metrics"]["weight"] == 12

        assert (await life.catalog.runs.get(RUN)).state == "active"
        [receipt] = await life.receipts()
        assert (receipt.reason, receipt.replayed) == ("it was parked", 0)
        assert receipt.archive is not None


async def test_results_of_a_parked_run_are_still_given(home: Path) -> None:
    clock = Clock()
    async with lived(home, clock=clock) as life:
        await half_trained(life)
        expected = [await life.result(request_id) for request_id in life.asked]
        clock.pass_seconds(HOUR)
        await life.engine.sessions.end_silent()

        assert [await life.result(request_id) for request_id in life.asked] == expected
        assert await life.state() == (5, 7, 1)


async def test_a_repeat_to_a_parked_run_is_known(home: Path) -> None:
    clock = Clock()
    async with lived(home, clock=clock) as life:
        await half_trained(life)
        clock.pass_seconds(HOUR)
        await life.engine.sessions.end_silent()

        again = await life.engine.training.forward_backward(await life.run(), 1, b"5")

        assert again == life.asked[0]
        assert await life.state() == (5, 7, 1)


async def test_a_parked_run_stays_parked_when_the_server_is_started_again(home: Path) -> None:
    clock = Clock()
    async with lived(home, clock=clock) as first:
        await half_trained(first)
        clock.pass_seconds(HOUR)
        await first.engine.sessions.end_silent()
        left = first.crash()

    async with lived(left, after=first) as second:
        await until(lambda: second.engine.runs.are_all_woken)
        assert len(second.engine.runs) == 0 and second.backend.calls == []
        assert await second.state() == (5, 7, 1)


async def test_a_run_that_nothing_was_asked_of_since_is_parked_without_another_archive(home: Path) -> None:
    clock = Clock()
    async with lived(home, clock=clock) as life:
        await half_trained(life)
        for _ in range(3):
            clock.pass_seconds(HOUR)
            await life.engine.sessions.end_silent()
            assert len(life.engine.runs) == 0
            await life.run()
            await life.state()

        assert len(life.recovery_archives()) == 1


async def test_a_run_that_cannot_be_written_down_is_not_parked(home: Path) -> None:
    clock = Clock()
    async with lived(home, clock=clock) as life:
        await half_trained(life)
        clock.pass_seconds(HOUR)
        life.backend.fail_next("disk", ServerFailure("the disk is full"))

        await life.engine.sessions.end_silent()

        assert RUN in life.backend.runs
        assert (await life.catalog.runs.get(RUN)).state == "active"
        assert (await life.told(await life.ask_step()))["metrics"]["weight"] == 12


async def test_an_operation_that_comes_while_its_run_is_parked_is_done(home: Path) -> None:
    clock = Clock()
    async with lived(home, clock=clock) as life:
        await half_trained(life)
        clock.pass_seconds(HOUR)
        life.backend.hold("disk")
        parking = asyncio.create_task(life.engine.sessions.end_silent())
        await until(lambda: "save" in life.backend.words())
        step = await life.ask_step()

        life.backend.let_go("disk")
        await parking

        assert (await life.told(step))["metrics"]["weight"] == 12
        assert await life.state() == (12, 0, 2)


async def test_a_worker_that_dies_while_a_run_is_parked_costs_nothing(home: Path) -> None:
    clock = Clock()
    async with lived(home, clock=clock) as life:
        await half_trained(life)
        clock.pass_seconds(HOUR)
        life.backend.hold("disk")
        parking = asyncio.create_task(life.engine.sessions.end_silent())
        await until(lambda: "save" in life.backend.words())

        life.backend.die("signal 9")
        await parking

        assert await life.state() == (5, 7, 1)


async def test_the_run_that_was_not_used_for_longest_makes_room(home: Path) -> None:
    async with lived(home, limits=EngineLimits(runs=2)) as life:
        await life.make(0)
        await life.make(1)
        await life.train(1, run_id="s:train:0")

        await life.make(2)

        assert set(life.backend.runs) == {"s:train:0", "s:train:2"}
        assert await life.state("s:train:1") == (0, 0, 0)
        assert set(life.backend.runs) == {"s:train:1", "s:train:2"}
        assert await life.state("s:train:0") == (1, 0, 1)


async def test_a_server_is_busy_only_while_all_its_runs_are(home: Path) -> None:
    async with lived(home, limits=EngineLimits(runs=2)) as life:
        await life.make(0)
        await life.make(1)
        life.backend.hold("forward_backward")
        stuck = [await life.ask_pass(5, f"s:train:{number}") for number in (0, 1)]
        with pytest.raises(Busy, match="2 runs are loaded"):
            await make_run(life.engine, 2)

        life.backend.let_go("forward_backward")
        for request_id in stuck:
            await life.result(request_id)
        for live in life.engine.runs:
            await live.lane.drained()

        assert "error" not in await answer(life.engine, await make_run(life.engine, 2))


async def test_more_runs_than_may_be_loaded_are_served_after_a_crash(home: Path) -> None:
    async with lived(home, limits=EngineLimits(runs=4)) as first:
        for number in range(4):
            await first.make(number)
            await first.train(number + 1, run_id=f"s:train:{number}")
        await first.written()
        left = first.crash()

    async with lived(left, limits=EngineLimits(runs=2)) as second:
        for number in range(4):
            assert await second.state(f"s:train:{number}") == (number + 1, 0, 1)
        assert len(second.backend.runs) == 2


async def test_a_deleted_checkpoint_is_kept_for_a_run_that_no_server_has_woken_yet(home: Path) -> None:
    """The run loads it again when it is woken, also if a third server does that."""
    async with lived(home, limits=EngineLimits(runs=2), durability=RARELY) as life:
        await life.make()
        await life.train(5)
        await life.result(await life.ask_save("a"))
        await life.train(7)
        await life.result(await life.ask_load("a"))
        await life.make(1)
        await life.written()
        row = await life.catalog.checkpoints.get(RUN, "weights", "a", now=NOW)
        await life.catalog.checkpoints.discard([row], reason="deleted", now=NOW, purge_at=NOW)
        await life.catalog.runs.touch_many({"s:train:1": NOW + timedelta(minutes=1)})
        left = life.crash()

    for _ in range(2):
        async with lived(left, limits=EngineLimits(runs=1), durability=RARELY) as later:
            await until(lambda: later.engine.runs.are_all_woken)
            assert [run.run_id for run in later.engine.runs] == ["s:train:1"]
            assert await later.engine.checkpoints.purge_due() == ()
            left = later.crash()

    async with lived(left, limits=EngineLimits(runs=1), durability=RARELY) as last:
        await until(lambda: last.engine.runs.are_all_woken)  # until then there may be no place for it
        await until(lambda: all(run.lane.is_idle() for run in last.engine.runs))
        assert await last.state() == (5, 0, 1)


async def test_what_was_asked_of_a_run_that_was_not_brought_back_yet_is_done_when_somebody_asks(home: Path) -> None:
    async with lived(home) as first:
        await first.make(0)
        await first.make(1)
        first.backend.hold("forward_backward")
        asked = [await first.ask_pass(number + 1, f"s:train:{number}") for number in (0, 1)]
        await first.written()
        left = first.crash()

    async with lived(left, limits=EngineLimits(runs=1)) as second:
        for number, request_id in enumerate(asked):
            assert (await second.result(request_id)).body == b"loss %d" % (number + 1)


async def test_a_run_whose_session_ended_just_before_the_server_is_not_brought_back_to_be_unloaded(home: Path) -> None:
    async with lived(home) as first:
        live = await first.make()
        await first.train(5)
        first.backend.hold("close_run")
        await first.catalog.sessions.finish("s", reason="success", now=NOW)
        await first.engine.training.close(live)
        await until(lambda: "close_run" in first.backend.words())
        await first.written()
        left = first.crash()

    async with lived(left) as second:
        await until(lambda: second.engine.runs.are_all_woken)
        assert (await second.catalog.runs.get(RUN)).state == "unloaded"
        assert len(second.engine.runs) == 0 and second.backend.words() == []


async def test_what_was_asked_before_a_session_ended_is_done_by_the_next_server(home: Path) -> None:
    async with lived(home) as first:
        await first.make()
        await first.train(5)
        first.backend.hold("save")
        await first.ask_save()
        await until(lambda: "save" in first.backend.words())
        await first.catalog.sessions.finish("s", reason="success", now=NOW)
        await first.written()
        left = first.crash()

    async with lived(left) as second:
        await until(lambda: "save" in second.backend.words())


async def test_a_run_that_is_asked_something_is_used_however_it_was_found(home: Path) -> None:
    async with lived(home, limits=EngineLimits(runs=2)) as life:
        hot = await life.make(0)
        await life.make(1)
        await life.result(await life.engine.training.forward_backward(hot, 1, b"1"))
        await hot.lane.drained()

        await life.make(2)

        assert set(life.backend.runs) == {"s:train:0", "s:train:2"}


async def test_a_request_that_comes_just_as_its_run_was_parked_is_to_be_sent_again(home: Path) -> None:
    async with lived(home) as life:
        await half_trained(life)
        live = await life.run()
        assert await life.engine._core.registry.park(live)

        with pytest.raises(Busy, match="is being parked"):
            await life.engine.training.optim_step(live, life.seq_id, {})

        assert (await life.told(await life.ask_step()))["metrics"]["weight"] == 12


async def test_a_run_that_cannot_go_on_takes_nobody_elses_place(home: Path) -> None:
    async with lived(home, limits=EngineLimits(runs=1), durability=Durability(journal="off")) as life:
        live = await life.make(0)
        life.backend.die("signal 9")
        await until(lambda: live.is_lost)
        await live.lane.drained()

        await life.make(1)

        assert set(life.backend.runs) == {"s:train:1"}


async def test_a_forged_request_id_reaches_no_journal_of_another_run(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with lived(home) as life:
        await half_trained(life)
        opened: list[Path] = []

        async def spy(directory: Path, *_: object) -> None:
            opened.append(directory)

        monkeypatch.setattr(RunJournal, "reopen", spy)

        assert await life.engine.find_promise(f"../runs/{RUN}:1") is None
        assert opened == []


async def test_a_run_that_waits_for_its_base_model_is_parked_like_any_other(home: Path) -> None:
    clock = Clock()
    async with lived(home, clock=clock) as first:
        await half_trained(first)
        await first.written()
        left = first.crash()

    async with lived(left, after=first, clock=clock, environment={"models": {}}) as second:
        live = await second.run()
        await until(lambda: live.is_held and live.lane.is_idle())
        clock.pass_seconds(HOUR)
        async with asyncio.timeout(10):
            await second.engine.sessions.end_silent()
        assert len(second.engine.runs) == 0
        left = second.crash()

    async with lived(left, after=second) as third:
        assert await third.state() == (5, 7, 1)


async def test_a_run_whose_journal_is_closed_meanwhile_is_not_parked(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    async with lived(home, clock=clock) as life:
        await half_trained(life)
        clock.pass_seconds(HOUR)

        async def closed(_: RunJournal) -> None:
            raise JournalError("the journal is closed")

        with monkeypatch.context() as patched:
            patched.setattr(RunJournal, "flushed", closed)
            async with asyncio.timeout(10):
                await life.engine.sessions.end_silent()

        assert len(life.engine.runs) == 1


async def test_a_journal_that_cannot_be_opened_for_a_moment_is_not_lost(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with lived(home) as first:
        await half_trained(first)
        await first.written()
        left = first.crash()

    def fail(directory: Path) -> list[Scan]:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patched:
        patched.setattr(journal, "scan_all", fail)
        async with lived(left, after=first) as second:
            with pytest.raises(Busy, match="nothing of it is lost: .*Too many open files"):
                await second.run()
            patched.undo()

            assert await second.state() == (5, 7, 1)


async def test_many_runs_asked_for_at_once_are_no_more_than_may_be_loaded(home: Path) -> None:
    async with lived(home, limits=EngineLimits(runs=2)) as life:
        asked = await asyncio.gather(*(make_run(life.engine, number) for number in range(20)), return_exceptions=True)

        assert len(life.engine.runs) <= 2
        assert {type(each) for each in asked} == {str, Busy}


async def test_what_lies_among_the_journals_and_is_none_is_left_alone(home: Path) -> None:
    async with lived(home) as first:
        await half_trained(first)
        await first.written()
        left = first.crash()
    journals = left / RUN_JOURNALS
    (journals / "loop.train.0").symlink_to("loop.train.0")
    (journals / "etc.train.0").symlink_to(home)
    (journals / "lost+found").mkdir()
    (journals / ".train.0").mkdir()
    (journals / "notes").write_text("mine")

    async with lived(left, after=first) as second:
        assert await second.state() == (5, 7, 1)

    assert {"loop.train.0", "etc.train.0", "lost+found", ".train.0", "notes"} <= set(os.listdir(journals))


async def test_a_run_that_is_removed_while_the_server_starts_keeps_no_other_from_being_woken(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with lived(home) as life:
        first, second = await life.make(0), await life.make(1)
        listed = await life.catalog.runs.list_in_state("active")
        assert await life.engine._core.registry.park(second)
        await life.catalog.runs.set_state(second.run_id, "active")
        await life.engine.remove_run(await life.catalog.runs.get(first.run_id), by="local")

        async def as_before(catalog_runs: object, state: str) -> tuple[RunRow, ...]:
            return tuple(listed) if state == "active" else ()

        monkeypatch.setattr(type(life.catalog.runs), "list_in_state", as_before)
        await life.engine._core.registry.wake_all()

        assert [run.run_id for run in life.engine.runs] == [second.run_id]


async def test_a_run_that_is_created_while_a_server_without_a_journal_starts_is_not_lost(home: Path) -> None:
    async with lived(home, durability=Durability(journal="off")) as life:
        run = await life.make(0)

        await life.engine._core.registry.wake_all()

        assert (await life.catalog.runs.get(run.run_id)).state == "active"
