"""Runs that are brought back: by the next worker or the next server, they are what they were."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from chockstone.backends.calls import OptimStepCall
from chockstone.backends.protocol import StepReply
from chockstone.checkpoints import open_store
from chockstone.engine.config import Durability
from chockstone.engine.journal.writer import Stalled
from chockstone.engine.ownership.data_directory import RUN_JOURNALS
from chockstone.engine.runs.commands import UnknownCommand
from chockstone.wire.failures import BadRequest, ServerFailure
from support.engine.lives import EVERY_STEP, Life, archived, half_trained, is_still_active, lived
from support.engine.making import RUN, damage, made_run, settle_down, until


async def test_the_next_worker_has_the_run_as_it_was_with_what_was_accumulated(home: Path) -> None:
    async with lived(home) as life:
        await half_trained(life)
        before = await life.state()

        life.backend.die("signal 9")

        assert await life.state() == before == (5, 7, 1)
        assert (await life.told(await life.ask_step()))["metrics"]["weight"] == 12
        [receipt] = await life.receipts()
        assert (receipt.reason, receipt.archive, receipt.replayed, receipt.redone) == ("signal 9", None, 4, 0)
        assert (receipt.matched, receipt.mismatched, receipt.notes) == (3, 0, [])
        assert receipt.uncompared == [
            {"sequence": 1, "command": "create_model", "reason": "its result holds no numbers"}
        ], "the fourth of the replayed operations is explained"


async def test_the_next_server_has_the_run_as_it_was_with_what_was_accumulated(home: Path) -> None:
    async with lived(home) as first:
        await half_trained(first)
        before = await first.state()
        await first.written()
        left = first.crash()

    async with lived(left, after=first) as second:
        assert await second.state() == before == (5, 7, 1)
        assert (await second.told(await second.ask_step()))["metrics"]["weight"] == 12
        [receipt] = await second.receipts()
        assert (receipt.reason, receipt.replayed) == ("the server was started again", 4)


@pytest.mark.parametrize("durability", [EVERY_STEP, Durability(steps=2), Durability(steps=10**6)])
async def test_a_run_is_the_same_however_often_its_workers_and_servers_die(home: Path, durability: Durability) -> None:
    numbers = [3, 1, 4, 1, 5, 9, 2, 6]
    told: list[dict[str, object]] = []
    life: Life | None = None
    for number in numbers:
        async with lived(home, after=life, durability=durability) as life:
            if not told:
                await life.make()
            await life.result(await life.ask_pass(number))
            life.backend.die("signal 9")
            told.append(await life.told(await life.ask_step()))
            life.backend.die("signal 11")
            await life.state()
            home = life.crash()

    assert [each["metrics"]["weight"] for each in told] == [sum(numbers[: n + 1]) for n in range(len(numbers))]  # type: ignore[index]  # Any


async def test_what_was_computed_is_given_again_as_it_was(home: Path) -> None:
    async with lived(home) as first:
        await half_trained(first)
        results = [await first.result(request_id) for request_id in first.asked]
        await first.written()
        left = first.crash()

    async with lived(left) as second:
        second.backend._pass = lambda call: None  # type: ignore[assignment, method-assign]  # nothing must ask it
        assert [await second.result(request_id) for request_id in first.asked] == results


async def test_results_that_come_out_differently_are_not_told_and_are_confessed(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with lived(home) as life:
        await half_trained(life)
        original = life.backend._step

        def other(call: OptimStepCall) -> StepReply:
            return StepReply(metrics={**original(call).metrics, "noise": 1.0})

        monkeypatch.setattr(life.backend, "_step", other)
        life.backend.die("signal 9")
        await life.state()

        assert "noise" not in (await life.told(life.asked[1]))["metrics"]
        [receipt] = await life.receipts()
        assert (receipt.matched, receipt.mismatched) == (2, 1)
        assert receipt.notes[0] == "1 of 3 compared results differ from the first ones"
        assert [(each["command"], each["reason"]) for each in receipt.differing] == [
            ("optim_step", "its result has other bytes than before")
        ]


async def test_another_environment_is_named_in_the_receipt(home: Path) -> None:
    async with lived(home, durability=EVERY_STEP) as first:
        await first.make()
        await first.train_slowly(1)
        left = first.crash()

    async with lived(left, environment={"device": "cuda", "threads": 4}) as second:
        await second.state()
        [receipt] = await second.receipts()
        assert receipt.notes == ["device was 'none' and is 'cuda'; numbers may differ"]


async def test_an_upgrade_that_computes_otherwise_is_named_in_the_receipt(home: Path) -> None:
    async with lived(home) as first:  # a worker that tells no version of its arithmetic
        await half_trained(first)
        await first.written()
        left = first.crash()

    async with lived(left, environment={"device": "none", "arithmetic": 2}) as second:
        await second.state()
        [receipt] = await second.receipts()
        assert receipt.notes == ["arithmetic was 1 and is 2; numbers may differ"]


async def test_another_environment_is_named_where_there_is_no_archive_yet(home: Path) -> None:
    async with lived(home) as first:
        await half_trained(first)
        await first.written()
        left = first.crash()

    async with lived(left, environment={"device": "cuda"}) as second:
        await second.state()
        [receipt] = await second.receipts()
        assert receipt.notes == ["device was 'none' and is 'cuda'; numbers may differ"]


async def test_a_base_model_that_is_missing_holds_the_run_until_it_is_back(home: Path) -> None:
    async with lived(home) as first:
        await half_trained(first)
        first.backend.hold("optim_step")
        waiting = await first.ask_step()
        await first.written()
        left = first.crash()

    async with lived(left, after=first, environment={"models": {"other": ""}}) as second:
        await until(lambda: (second.engine.why_waiting(waiting) or "").startswith("base model 'tiny' is not served"))
        assert "--model tiny=DIRECTORY" in (second.engine.why_waiting(waiting) or "")
        promise = await second.engine.find_promise(waiting)
        assert promise is not None and not promise.is_done()
        with pytest.raises(Stalled, match="base model 'tiny' is not served"):
            await second.ask_pass(1)
        await second.written()
        left = second.crash()

    async with lived(left, after=first) as third:
        assert (await third.told(waiting))["metrics"]["weight"] == 12
        assert (await third.catalog.runs.get(RUN)).state == "active"


async def test_the_same_number_sent_twice_at_once_is_applied_once(home: Path) -> None:
    async with lived(home) as first:
        live = await first.make()
        training = first.engine.training
        both = await asyncio.gather(*(training.forward_backward(live, 1, b"5") for _ in range(2)))
        steps = await asyncio.gather(*(training.optim_step(live, 2, {}) for _ in range(2)))
        assert len(set(both)) == len(set(steps)) == 1
        assert await first.state() == (5, 0, 1)
        await first.written()
        left = first.crash()

    async with lived(left) as second:
        live = await second.run()
        again = await second.engine.training.forward_backward(live, 1, b"5")
        assert again == both[0]
        assert await second.engine.training.optim_step(live, 2, {}) == steps[0]
        assert await second.state() == (5, 0, 1)


async def test_a_run_asked_for_again_by_its_client_is_the_one_that_came_back(home: Path) -> None:
    async with lived(home) as first:
        await half_trained(first)
        left = first.crash()

    async with lived(left) as second:
        await second.make()
        assert await second.state() == (5, 7, 1)


async def test_what_was_queued_is_done_in_its_order_after_a_restart(home: Path) -> None:
    async with lived(home) as first:
        await first.make()
        first.backend.hold("forward_backward")
        for number in (1, 2, 3):
            await first.ask_pass(number)
            await first.ask_step()
        saving = await first.ask_save()
        await first.ask_pass(10)
        step = await first.ask_step()
        stopping = asyncio.create_task(first.engine.stop())
        await settle_down()
        first.backend.let_go("forward_backward")
        await stopping
        assert [word for word in first.backend.words() if word != "save"] == [
            "open_run",
            "forward_backward",
            "close_run",
        ]

    async with lived(home) as second:
        assert (await second.told(step))["metrics"]["weight"] == 16
        assert "error" not in await second.told(saving)
        assert await archived(second) == 6
        weights = [(await second.told(each))["metrics"]["weight"] for each in first.asked[1:6:2]]
        assert weights == [1, 3, 6]


async def test_a_server_that_stopped_in_good_order_leaves_nothing_to_replay(home: Path) -> None:
    async with lived(home) as first:
        await half_trained(first)

    async with lived(home, after=first) as second:
        assert await second.state() == (5, 7, 1)
        assert second.backend.words() == ["open_run", "load"]
        assert [receipt.replayed for receipt in await second.receipts()] == [0]


@pytest.mark.parametrize("base_model", ["tiny", "tiny:peft:64"])
async def test_another_model_under_the_same_name_holds_the_run_and_touches_nothing_of_it(
    home: Path, base_model: str
) -> None:
    async with lived(home, durability=EVERY_STEP) as first:
        await made_run(first.engine, base_model=base_model)
        await first.train_slowly(1, 2)
        await first.written()
        left = first.crash()

    async with lived(left, after=first, durability=EVERY_STEP, environment={"models": {"tiny": "of 3M"}}) as second:
        second.backend.fail_next("load", BadRequest("checkpoint and run train different layers"))
        kept = second.recovery_archives()
        second.backend.store.delete(kept[0])  # so that the other does not load, and is all there is
        live = await second.run()
        await until(lambda: live.is_held)
        assert "base model 'tiny' is not the one that run 's:train:0' was trained on" in live.state.reason
        with pytest.raises(Stalled, match="--model tiny=DIRECTORY of that one"):
            await second.ask_pass(1)
        assert second.recovery_archives() == kept[1:]
        assert (await second.catalog.runs.get(RUN)).state == "active"
        await second.written()
        left = second.crash()

    async with lived(left, after=first) as third:
        assert await third.state() == (3, 0, 2)


async def test_an_archive_that_cannot_be_loaded_today_does_not_end_the_run(home: Path) -> None:
    async with lived(home, durability=EVERY_STEP) as first:
        await first.make()
        await first.train_slowly(1, 2, 3)
        await first.written()
        older, newest = first.recovery_archives()
        left = first.crash()
    trim(left)
    open_store(left / "checkpoints").delete(older)

    async with lived(left, after=first) as second:
        second.backend.fail_next("load", ServerFailure("out of memory"))
        live = await second.run()
        await until(lambda: live.is_lost)
        assert "out of memory" in live.state.reason
        assert second.recovery_archives() == [newest]
        assert await is_still_active(second)
        left = second.crash()

    async with lived(left, after=first) as third:
        assert await third.state() == (6, 0, 3)


async def test_a_journal_with_a_gap_is_not_replayed_from_its_beginning(home: Path) -> None:
    async with lived(home, durability=EVERY_STEP) as first:
        await first.make()
        await first.train_slowly(1, 2, 3, 4)
        await first.written()
        for archive in first.recovery_archives():
            damage(first.backend.store, archive)
        left = first.crash()
    trim(left)

    async with lived(left, after=first) as second:
        live = await second.run()
        await until(lambda: live.is_lost)
        assert "its journal does not go back to its beginning" in live.state.reason
        assert "forward_backward" not in second.backend.words()


def trim(left: Path) -> None:
    """As if nobody might ask any more for the results in the journal's second segment."""
    sorted((left / RUN_JOURNALS / "s.train.0").iterdir())[1].unlink()


async def test_a_run_that_waits_for_the_recovery_of_another_says_so(home: Path) -> None:
    async with lived(home) as life:
        for number in (0, 1):
            await life.make(number)
            await life.train(5, run_id=f"s:train:{number}")
        life.backend.die("signal 9")
        life.backend.hold("open_run")

        await until(lambda: life.backend.words()[-1] == "open_run")

        pauses = [life.engine.why_waiting(f"s:train:{number}:9") for number in (0, 1)]
        assert sorted(map(str, pauses)) == [
            "the run is being recovered: 0 of 3 operations are replayed",
            "the run waits for its turn to be recovered",
        ]


async def test_a_new_run_does_not_wait_until_others_are_recovered(home: Path) -> None:
    async with lived(home) as life:
        await half_trained(life)
        life.backend.die("signal 9")
        life.backend.hold("forward_backward")
        await until(lambda: (life.engine.why_waiting(f"{RUN}:9") or "").startswith("the run is being recovered: 1"))

        await life.make(1)

        life.backend.let_go("forward_backward")
        assert await life.state() == (5, 7, 1)


async def test_an_operation_that_cannot_be_replayed_today_does_not_end_the_run(home: Path) -> None:
    async with lived(home) as first:
        await half_trained(first)
        await first.written()
        left = first.crash()

    async with lived(left, after=first, environment={"device": "small"}) as second:
        second.backend.fail_next("optim_step", ServerFailure("out of memory"))
        live = await second.run()
        await until(lambda: live.is_lost)
        assert "operation 5 (optim_step) of run 's:train:0' cannot be replayed: out of memory" in live.state.reason
        assert await is_still_active(second)
        left = second.crash()

    async with lived(left, after=first) as third:
        assert await third.state() == (5, 7, 1)


async def test_a_server_that_stops_does_not_blame_its_worker(home: Path) -> None:
    async with lived(home) as life:
        await half_trained(life)
        life.backend.is_ready = False
        life.engine.shutdown.begin()

        assert (
            life.engine.why_waiting(f"{RUN}:9") == "the server is shutting down; the next one continues the operation"
        )

        life.backend.is_ready = True


async def test_without_a_worker_for_good_what_was_acknowledged_waits_for_the_next_server(home: Path) -> None:
    async with lived(home) as life:
        await life.make()
        await life.train(5)
        life.backend.hold("forward_backward")
        asked = [await life.ask_pass(1), await life.ask_step(), await life.ask_pass(2), await life.ask_step()]
        await life.written()
        home = life.crash()
        life.backend.let_everything_go()

    async with lived(home, after=life, has_worker=False) as second:
        live = await second.run()
        await until(lambda: live.waits_for is not None)
        second.backend.is_stopped = True  # as when no worker can be started: the server is told at the same time
        await settle_down()

    async with lived(home, after=life) as third:
        assert not any([(await third.result(each)).is_failure for each in asked])
        assert await third.state() == (5 + 1 + 2, 0, 3)


async def test_a_command_of_a_newer_version_fails_alone_and_is_skipped_by_a_replay(home: Path) -> None:
    async with lived(home) as first:
        live = await first.make()
        newer = await first.engine._core.runner.submit(live, 1, UnknownCommand("merge", {"with": "b"}))
        assert (await first.told(newer)) == {
            "error": "the journal asks for 'merge', which this version does not know",
            "category": "user",
        }
        first.seq_id = 2
        await first.train(5)
        await first.written()
        left = first.crash()

    async with lived(left, after=first) as second:
        assert await second.state() == (5, 0, 1)
        assert "does not know" in (await second.told(newer))["error"]


async def test_a_replay_gets_the_micro_batches_that_fitted_the_first_time(home: Path) -> None:
    async with lived(home) as first:
        await first.make()
        await first.result(await first.ask_pass(1))
        first.backend.fitting = 512
        await first.result(await first.ask_pass(2))
        left = first.crash()

    async with lived(left, after=first) as second:
        await second.state()

        passes = [values for name, values, _ in second.backend.calls if name == "forward_backward"]
        assert [each["tokens_per_micro_batch"] for each in passes] == [None, 512]
        assert [each["is_replay"] for each in passes] == [True, True]
        assert [values["is_replay"] for name, values, _ in first.backend.calls if name == "forward_backward"] == [
            False,
            False,
        ]
