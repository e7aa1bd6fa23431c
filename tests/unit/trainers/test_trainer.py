"""A trainer withstands servers that are gone, calls that never return, and values that are out of range."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from chockstone.checkpoints import Checkpointer
from chockstone.trainers import (
    Completion,
    ConfigInvalid,
    FinalSaveFailed,
    Problem,
    RewardInvalid,
    TrainerError,
    saves,
)
from chockstone.trainers import trainer as trainer_module
from support.loop_gate import LoopGate
from support.loopback_s3 import make_bucket, s3_server, set_environment
from support.trainers.fakes import Digits, FakeServer, Ledger, Tokenizer, mean, trainer


async def ended(task: asyncio.Task[Any]) -> None:
    await asyncio.wait([task], timeout=60)
    assert task.done(), "it did not end"
    assert asyncio.all_tasks() == {asyncio.current_task()}


def steps(home: Path) -> list[int | None]:
    return [each.manifest.step if each.manifest else None for each in Checkpointer(home).checkpoints()]


@pytest.mark.parametrize("gone", ["forward_backward", "save_state"])
async def test_a_stopped_trainer_waits_for_a_server_that_is_gone_no_longer_than_it_was_told(
    gone: str, server: FakeServer, ledger: Ledger, tmp_path: Path
) -> None:
    answered = asyncio.Event()

    async def pace(what: str) -> None:
        if what == gone and server.reached["forward_backward"] >= 4:
            while steps(tmp_path) != [2]:  # the save of step 2 ends in the background
                await asyncio.sleep(0.01)
            answered.set()
            await asyncio.Event().wait()

    server.pace = pace
    task = asyncio.create_task(trainer(tmp_path, ledger, stop_seconds=0.05).run())
    await answered.wait()
    task.cancel()

    await ended(task)
    with pytest.raises(FinalSaveFailed, match=r"step \d could not be saved within 0.05 s; the newest .* of step 2"):
        task.result()
    assert steps(tmp_path) == [2]


async def test_old_checkpoints_that_take_their_time_to_go_do_not_make_the_last_one_fail(
    server: FakeServer, ledger: Ledger, tmp_path: Path
) -> None:
    never = threading.Event()
    server.in_thread["delete"] = lambda: never.wait(60)
    task = asyncio.create_task(trainer(tmp_path, ledger, keep=1, save_every=1, steps=2, stop_seconds=0.05).run())
    while "delete" not in server.calls:
        await asyncio.sleep(0.001)
    task.cancel()

    await ended(task)
    assert task.cancelled()
    assert steps(tmp_path) == [2]
    never.set()


async def test_an_error_waits_for_a_save_no_longer_than_a_stop_does(
    server: FakeServer, ledger: Ledger, tmp_path: Path
) -> None:
    async def pace(what: str) -> None:
        if what == "sample" and server.reached["sample"] > 2:  # of the second step
            await server.until("save_state")
            raise OSError("it is away")

    server.pace = pace
    server.hold("save_state")  # for ever
    task = asyncio.create_task(trainer(tmp_path, ledger, save_every=1, stop_seconds=0.05).run())

    await ended(task)
    with pytest.raises(OSError, match="it is away"):
        task.result()


def test_the_end_of_the_program_does_not_wait_for_a_call_that_never_returns(
    server: FakeServer, ledger: Ledger, tmp_path: Path
) -> None:
    never, reached, returned = (threading.Event() for _ in range(3))

    def hang() -> None:
        if server.calls.count("sync") == 3:
            reached.set()
            never.wait(60)
            returned.set()

    async def main() -> None:
        task = asyncio.create_task(trainer(tmp_path, ledger).run())
        while not reached.is_set():
            await asyncio.sleep(0.001)
        task.cancel()
        await ended(task)

    server.in_thread["sync"] = hang
    asyncio.run(main())

    assert not returned.is_set()
    assert steps(tmp_path) == [2]
    never.set()


async def test_a_session_that_cannot_be_closed_takes_nothing_from_what_was_trained(
    server: FakeServer, ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.fail("close", OSError("it is away"))
    assert (await trainer(tmp_path, ledger).run()).progress.step == 6

    never = threading.Event()
    server.in_thread["close"] = lambda: never.wait(60)
    monkeypatch.setattr(trainer_module, "_CLOSE_SECONDS", 0.01)
    assert (await trainer(tmp_path, ledger).run()).progress.step == 6
    never.set()


async def test_a_save_whose_client_gives_up_is_a_failed_save(
    server: FakeServer, ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saves, "_FINAL_PAUSE_SECONDS", 0.0)
    server.fail("save_state", asyncio.CancelledError())

    outcome = await trainer(tmp_path, ledger, save_every=0).run()

    assert outcome.progress.step == 6
    assert any("failed and will be tried again" in event for event in ledger.events)


@pytest.mark.parametrize(("seconds", "tried"), [(60.0, 1 + 2 + 3 * 17), (-1.0, 19)])
async def test_what_cannot_be_deleted_is_neither_tried_nor_remembered_for_ever(
    seconds: float, tried: int, server: FakeServer, ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saves, "_MOST_TO_DELETE", 3)
    monkeypatch.setattr(saves, "_DELETE_SECONDS", seconds)
    server.fail("delete", *(OSError("forbidden") for _ in range(100)))

    await trainer(tmp_path, ledger, steps=20, save_every=1, keep=1).run()

    assert server.calls.count("delete") == tried


async def test_a_store_is_opened_off_the_loop(
    server: FakeServer, ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = LoopGate()
    monkeypatch.setattr(trainer_module, "open_store", gate.before(trainer_module.open_store))

    async with gate.watch():
        await trainer(tmp_path, ledger, steps=1).run()


async def test_an_object_store_will_do(
    server: FakeServer, ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    undisturbed, home = Ledger(), cast("Path", "s3://runs/one")  # a URL will do where a path does
    await trainer(tmp_path, undisturbed).run()
    with s3_server() as url:
        make_bucket(url, "runs")
        set_environment(monkeypatch, url)
        task = asyncio.create_task(trainer(home, ledger, keep=1).run())
        loop = asyncio.get_running_loop()
        ledger.before_record = lambda record: loop.call_soon_threadsafe(task.cancel) if record.step == 3 else None
        await ended(task)
        assert task.cancelled()

        outcome = await trainer(home, ledger, keep=1).run()

        assert (outcome.resumed_from, ledger.order) == (ledger.steps[2], undisturbed.order)
        assert [each.name for each in Checkpointer("s3://runs/one").checkpoints()] == ["trainer/step-00000006"]


async def test_a_reward_that_fails_because_it_is_cancelled_does_not_cost_the_last_checkpoint(
    server: FakeServer, ledger: Ledger, tmp_path: Path
) -> None:
    asked = asyncio.Event()

    class Fragile(Digits):
        async def reward(self, problem: Problem, completion: Completion) -> float:  # type: ignore[override]
            if len(ledger.steps) >= 3:
                asked.set()
                try:
                    await asyncio.sleep(60)
                except asyncio.CancelledError:
                    raise OSError("the sandbox is gone") from None
            return mean(problem, completion)

    task = asyncio.create_task(trainer(tmp_path, ledger, environment=Fragile(), save_every=0).run())
    await asked.wait()
    task.cancel()

    await ended(task)
    assert task.cancelled()
    assert steps(tmp_path) == ledger.steps[-1:]
    assert any("the sandbox is gone" in event for event in ledger.events)


async def test_an_error_of_several_is_raised_as_it_was(server: FakeServer, ledger: Ledger, tmp_path: Path) -> None:
    several = ExceptionGroup("two judges", [OSError("one"), OSError("other")])
    environment = Digits()
    environment.judge = raises(several)

    with pytest.raises(ExceptionGroup) as raised:
        await trainer(tmp_path, ledger, environment=environment).run()

    assert raised.value is several


@pytest.mark.parametrize("where", ["problem", "reward", "evaluation"])
async def test_an_environment_that_raises_stop_iteration_ends_training(
    where: str, server: FakeServer, ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Digits, where, raises(StopIteration()))
    task = asyncio.create_task(trainer(tmp_path, ledger, evaluate_every=1).run())

    await ended(task)
    with pytest.raises(RuntimeError, match="StopIteration"):
        task.result()


@pytest.mark.parametrize("reward", [1e31, -(10**400), float("inf")], ids=["large", "huge", "infinite"])
async def test_a_reward_that_no_advantage_can_be_made_of_is_named(
    reward: float, server: FakeServer, ledger: Ledger, tmp_path: Path
) -> None:
    environment = Digits()
    environment.judge = lambda problem, completion: reward

    with pytest.raises(RewardInvalid, match="not a finite number of 32 bits"):
        await trainer(tmp_path, ledger, environment=environment).run()


async def test_a_prompt_without_tokens_is_named(
    server: FakeServer, ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Tokenizer, "encode", lambda self, text, *, add_special_tokens: [])

    with pytest.raises(TrainerError, match=r"the prompt of problem 'p\d' has no tokens"):
        await trainer(tmp_path, ledger).run()


async def test_a_stop_that_is_one_text_is_refused(server: FakeServer, ledger: Ledger, tmp_path: Path) -> None:
    environment = Digits()
    environment.stop = "END"  # type: ignore[assignment]  # a sequence of texts, in a way

    with pytest.raises(ConfigInvalid, match="stop is the text 'END'"):
        trainer(tmp_path, ledger, environment=environment)


async def test_only_one_evaluation_goes_on_at_a_time(server: FakeServer, ledger: Ledger, tmp_path: Path) -> None:
    going_on: set[int] = set()
    most = 0
    evaluate_once = trainer_module.RolloutWorker._greedy_reward

    async def noting(self: Any, problem: Problem, policy: Any) -> float:
        nonlocal most
        going_on.add(policy.version)
        most = max(most, len(going_on))
        for _ in range(50):
            await asyncio.sleep(0)
        reward = await evaluate_once(self, problem, policy)
        going_on.discard(policy.version)
        return reward

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainer_module.RolloutWorker, "_greedy_reward", noting)
        await trainer(tmp_path, ledger, evaluate_every=1).run()

    assert most == 1
    assert [step for step, _ in ledger.evaluations] == [1, 2, 3, 4, 5, 6]


def raises(error: BaseException) -> Callable[..., Any]:
    def call(*_: object, **__: object) -> Any:
        raise error

    return call
