"""What a trainer must withstand: servers that are gone, states that are none, rewards and logprobs out of range."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from chockstone.checkpoints import Checkpointer
from chockstone.trainers import (
    Completion,
    ConfigInvalid,
    FinalSaveFailed,
    Problem,
    ResumeRefused,
    RewardInvalid,
    TrainerError,
    saves,
)
from chockstone.trainers import trainer as trainer_module
from chockstone.trainers.rollouts.loader import ShuffledLoader
from chockstone.trainers.snapshot import KIND
from support.loop_gate import LoopGate
from support.loopback_s3 import make_bucket, s3_server, set_environment
from support.trainers.fakes import Digits, FakeSampler, FakeServer, Ledger, Tokenizer, mean, trainer

State = dict[str, Any]


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
    server.hold("save_state")  # for ever
    task = asyncio.create_task(trainer(tmp_path, ledger, save_every=1, stop_seconds=0.05).run())
    await server.until("save_state")
    server.fail("sample", OSError("it is away"))

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
    assert (await trainer(tmp_path, ledger).run()).tally.step == 6

    never = threading.Event()
    server.in_thread["close"] = lambda: never.wait(60)
    monkeypatch.setattr(trainer_module, "_CLOSE_SECONDS", 0.01)
    assert (await trainer(tmp_path, ledger).run()).tally.step == 6
    never.set()


async def test_a_save_whose_client_gives_up_is_a_failed_save(
    server: FakeServer, ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saves, "_FINAL_PAUSE_SECONDS", 0.0)
    server.fail("save_state", asyncio.CancelledError())

    outcome = await trainer(tmp_path, ledger, save_every=0).run()

    assert outcome.tally.step == 6
    assert any("failed and will be tried again" in event for event in ledger.events)


@pytest.mark.parametrize(("seconds", "tried"), [(60.0, 1 + 2 + 3 * 17), (-1.0, 19)])
async def test_what_cannot_be_deleted_is_neither_tried_nor_remembered_for_ever(
    seconds: float, tried: int, server: FakeServer, ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saves, "_MOST_CONDEMNED", 3)
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
    evaluate_once = trainer_module.RolloutWorker.try_once

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
        patch.setattr(trainer_module.RolloutWorker, "try_once", noting)
        await trainer(tmp_path, ledger, evaluate_every=1).run()

    assert most == 1
    assert [step for step, _ in ledger.evaluations] == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize(
    "logprobs",
    [None, [], [None, -1.0], [-1.0, float("nan")], [float("-inf"), -1.0], [-1.0] * 3],
    ids=["none", "empty", "a none", "nan", "infinite", "too many"],
)
async def test_logprobs_that_cannot_be_trained_with_are_refused(
    logprobs: Any, server: FakeServer, ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sequence = SimpleNamespace(tokens=[1, 2], logprobs=logprobs, stop_reason="stop")
    monkeypatch.setattr(FakeSampler, "sample_async", answers([sequence, sequence]))

    with pytest.raises(TrainerError, match="no finite logprob of the policy for each of the 2 tokens"):
        await trainer(tmp_path, ledger).run()


async def test_base_logprobs_of_another_length_are_refused(
    server: FakeServer, ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def short(self: object, prompt: Any) -> list[float]:
        return [-1.0] * (len(prompt.to_ints()) - 1)

    monkeypatch.setattr(FakeSampler, "compute_logprobs_async", short)

    with pytest.raises(TrainerError, match="logprob of the base model"):
        await trainer(tmp_path, ledger, kl_coefficient=0.1).run()


async def test_fewer_samples_than_asked_for_are_refused(
    server: FakeServer, ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sequence = SimpleNamespace(tokens=[1], logprobs=[-1.0], stop_reason="stop")
    monkeypatch.setattr(FakeSampler, "sample_async", answers([sequence]))

    with pytest.raises(TrainerError, match=r"gave 1 samples of problem 'p\d', not 2"):
        await trainer(tmp_path, ledger).run()


async def test_completions_without_tokens_are_trained_on_as_any(
    server: FakeServer, ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent = SimpleNamespace(tokens=[], logprobs=[], stop_reason="stop")
    talking = SimpleNamespace(tokens=[5], logprobs=[-1.0], stop_reason="stop")
    monkeypatch.setattr(FakeSampler, "sample_async", answers([silent, talking]))
    environment = Digits()
    environment.judge = lambda problem, completion: float(len(completion.tokens))

    await trainer(tmp_path, ledger, environment=environment, kl_coefficient=0.1, steps=3).run()
    await trainer(tmp_path, ledger, environment=environment, kl_coefficient=0.1, steps=5).run()

    assert [row["tokens"] for row in ledger.rows] == [0, 1] * 10


def without(*path: str) -> Callable[[State], None]:
    def change(state: State) -> None:
        *way, last = path
        for name in way:
            state = state[name]
        del state[last]

    return change


def with_value(value: Any, *path: str) -> Callable[[State], None]:
    def change(state: State) -> None:
        *way, last = path
        for name in way:
            state = state[name]
        state[last] = value

    return change


BROKEN = {
    "empty": lambda state: state.clear(),
    "no trainer": without("trainer"),
    "trainer is a text": with_value("text", "trainer"),
    "no version": without("trainer", "version"),
    "version is a text": with_value("1", "trainer", "version"),
    "identity is a list": with_value([], "trainer", "identity"),
    "no tally": without("trainer", "tally"),
    "tally of more": with_value(1, "trainer", "tally", "more"),
    "step is a text": with_value("4", "trainer", "tally", "step"),
    "step is a fraction": with_value(4.5, "trainer", "tally", "step"),
    "step is negative": with_value(-4, "trainer", "tally", "step"),
    "seconds are not finite": with_value(float("nan"), "trainer", "tally", "seconds"),
    "best reward is not finite": with_value(float("inf"), "trainer", "tally", "best_reward"),
    "no path": without("trainer", "paths", "state"),
    "path is a number": with_value(7, "trainer", "paths", "state"),
    "paths are a list": with_value([], "trainer", "paths"),
    "draw of two": with_value([[1, 2]], "trainer", "draws"),
    "draw of texts": with_value([["1", "2", "3"]], "trainer", "draws"),
    "draw of negatives": with_value([[1, 0, -1]], "trainer", "draws"),
    "groups of no draw": with_value([], "trainer", "draws"),
    "no rollouts": without("rollouts"),
    "no tokens": without("rollouts", "tokens"),
    "tokens too short": lambda state: cut_short(state["rollouts"]["tokens"]),
    "lengths negative": lambda state: cut_short(state["rollouts"]["tokens"], by=-100),
    "logprobs of another shape": lambda state: lengthen(state["rollouts"]["logprobs"]),
    "rewards missing": with_value(np.zeros(0), "rollouts", "rewards"),
    "rewards are a list": with_value([1.0, 2.0], "rollouts", "rewards"),
    "version of a group is a text": lambda state: state["rollouts"]["versions"].__setitem__(0, "1"),
    "sizes too small": lambda state: state["rollouts"]["sizes"].__setitem__(0, 1),
    "no loader": without("loader"),
    "loader is a number": with_value(3, "loader"),
    "no extra": without("extra"),
}


def cut_short(joined: State, by: int = 1) -> None:
    joined["lengths"] = joined["lengths"].copy()
    joined["lengths"][0] -= by


def lengthen(joined: State) -> None:
    joined["lengths"] = joined["lengths"].copy()
    joined["lengths"][0] += 1
    joined["values"] = np.append(joined["values"], np.float32(0))


async def rewrite(home: Path, step: int, change: Callable[[State], None]) -> None:
    async with Checkpointer(home, prefix="trainer") as checkpointer:
        name = f"step-{step:08d}"
        state = checkpointer.load(name=name)
        change(state)
        await (await checkpointer.save_async(state, name=name, step=step, kind=KIND, overwrite=True))


@pytest.mark.parametrize("change", BROKEN.values(), ids=BROKEN)
async def test_an_archive_that_holds_something_else_is_walked_past(
    change: Callable[[State], None], server: FakeServer, ledger: Ledger, tmp_path: Path
) -> None:
    await trainer(tmp_path, ledger).run()
    undisturbed = ledger.order
    Checkpointer(tmp_path).store.delete("trainer/step-00000006")
    await rewrite(tmp_path, 4, change)

    outcome = await trainer(tmp_path, ledger).run()

    assert outcome.resumed_from == 2
    assert any("'trainer/step-00000004' is walked past" in event for event in ledger.events)
    assert ledger.order == undisturbed


@pytest.mark.parametrize(
    "change",
    [
        without("loader", "count"),
        without("loader", "drawn"),
        without("loader", "order"),
        with_value(-1, "loader", "drawn"),
        with_value(np.zeros(7, np.int64), "loader", "order"),
        with_value(np.arange(3), "loader", "order"),
        with_value("text", "loader", "order"),
    ],
)
async def test_a_state_that_is_no_loaders_is_refused(
    change: Callable[[State], None], server: FakeServer, ledger: Ledger, tmp_path: Path
) -> None:
    def shuffled() -> ShuffledLoader:
        return ShuffledLoader(7, seed=0)

    await trainer(tmp_path, ledger, loader=shuffled()).run()
    await rewrite(tmp_path, 6, change)

    with pytest.raises(ResumeRefused, match="the state is"):
        await trainer(tmp_path, ledger, loader=shuffled(), steps=8).run()


def test_a_loaders_state_is_not_changed_by_later_epochs() -> None:
    loader = ShuffledLoader(5, seed=1)
    loader.draw()
    state = loader.state_dict()
    order = state["order"].tolist()

    for _ in range(9):
        loader.draw()

    assert state["order"].tolist() == order


def raises(error: BaseException) -> Callable[..., Any]:
    def call(*_: object, **__: object) -> Any:
        raise error

    return call


def answers(sequences: list[SimpleNamespace]) -> Callable[..., Any]:
    async def sample(*_: object, **__: object) -> SimpleNamespace:
        return SimpleNamespace(sequences=sequences)

    return sample
