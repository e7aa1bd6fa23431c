"""One life of a trainer: what goes on at once, how it ends, and what it leaves."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from chockstone.checkpoints import Checkpointer
from chockstone.trainers import Completion, FinalSaveFailed, Problem, RewardInvalid, saves
from chockstone.trainers.rollouts.loader import ShuffledLoader
from support.trainers.fakes import Digits, FakeServer, Ledger, config, mean, trainer

Ending = asyncio.Task[Any]


async def start(home: Path, ledger: Ledger, **changes: Any) -> Ending:
    return asyncio.create_task(trainer(home, ledger, **changes).run())


async def error_of(task: Ending) -> BaseException:
    """What it ended with, once nothing of it is left."""
    await asyncio.wait([task], timeout=60)
    assert task.done(), "it did not end"
    assert asyncio.all_tasks() == {asyncio.current_task()}
    error = task.exception()
    assert error is not None
    return error


async def cancelled(task: Ending) -> None:
    await asyncio.wait([task], timeout=60)
    assert task.cancelled()
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def until(true: Callable[[], object]) -> None:
    while not true():
        await asyncio.sleep(0.001)


def saved_steps(home: Path) -> list[int | None]:
    return [each.manifest.step if each.manifest else None for each in Checkpointer(home).checkpoints()]


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Any:
    """Pools end with what is in them; only the loop's own may wait for the next test."""
    yield
    deadline = time.monotonic() + 60
    while left := [each.name for each in threading.enumerate() if each.name.startswith("chockstone")]:
        assert time.monotonic() < deadline, left
        time.sleep(0.001)


@pytest.mark.parametrize("staleness", [0, 1, 2, 4])
async def test_staleness_is_what_it_was_set_to_as_soon_as_it_can_be(
    staleness: int, server: FakeServer, ledger: Ledger, tmp_path: Path
) -> None:
    await trainer(tmp_path, ledger, staleness=staleness).run()

    for row in ledger.rows:
        assert row["staleness"] == row["step"] - 1 - row["version"] == min(row["step"] - 1, staleness)
    assert ledger.metrics[6]["staleness/max"] == ledger.metrics[6]["staleness/mean"] == staleness


@pytest.mark.parametrize("seed", range(4))
async def test_staleness_is_bounded_whatever_takes_how_long(
    seed: int, server: FakeServer, ledger: Ledger, tmp_path: Path
) -> None:
    chance = random.Random(seed)

    async def pace(what: str) -> None:
        for _ in range(chance.choice([0, 1, 5, 50])):
            await asyncio.sleep(0)

    server.pace = pace
    limit, concurrency = chance.choice([1, 2, 3]), chance.choice([None, 1, 3])
    await trainer(tmp_path, ledger, staleness=limit, concurrency=concurrency, steps=8).run()

    assert max(row["staleness"] for row in ledger.rows) <= limit
    assert len({row["sample_id"] for row in ledger.rows}) == len(ledger.rows) == 8 * 4


async def test_the_next_batch_is_generated_while_this_one_is_trained_on(
    server: FakeServer, ledger: Ledger, tmp_path: Path
) -> None:
    held, going = server.hold("forward_backward"), server.hold("sample")
    going.set()
    task = await start(tmp_path, ledger)
    await server.until("forward_backward")
    await until(lambda: server.answered["sample"] == 4)  # a batch and the next one, and no more

    assert ledger.steps == []
    held.set()
    await task
    assert server.answered["sample"] == 12


async def test_synchronous_training_generates_nothing_meanwhile(
    server: FakeServer, ledger: Ledger, tmp_path: Path
) -> None:
    held = server.hold("forward_backward")
    task = await start(tmp_path, ledger, staleness=0)
    await server.until("forward_backward")
    for _ in range(20):
        await asyncio.sleep(0.001)

    assert server.reached["sample"] == 2
    held.set()
    await task


async def test_every_step_trains_then_synchronises_and_then_saves(
    server: FakeServer, ledger: Ledger, tmp_path: Path
) -> None:
    await trainer(tmp_path, ledger, steps=2, save_every=1).run()

    assert [call for call in server.calls if call in ("submit", "step", "sync", "save_state")] == [
        *("sync", "submit", "step", "sync", "save_state", "submit", "step", "sync", "save_state")
    ]


async def test_a_batch_without_a_difference_is_a_step_that_teaches_nothing(
    server: FakeServer, ledger: Ledger, tmp_path: Path
) -> None:
    environment = Digits()
    environment.judge = lambda problem, completion: 0.5
    outcome = await trainer(tmp_path, ledger, environment=environment).run()

    assert "submit" not in server.calls
    assert (outcome.progress.step, outcome.progress.best_reward, len(ledger.rows)) == (6, 0.5, 24)


async def test_evaluations_are_of_the_policy_they_are_told_of(
    server: FakeServer, ledger: Ledger, tmp_path: Path
) -> None:
    outcome = await trainer(tmp_path, ledger, evaluate_every=4).run()

    assert [step for step, _ in ledger.evaluations] == [4, 6]
    assert outcome.progress.evaluated_step == 6
    assert outcome.progress.evaluation["problems"] == 2


class Boom(Exception):
    pass


def explode_as_a_user_would(problem: Problem, completion: Completion) -> float:
    try:
        raise KeyError("within")
    except KeyError as error:
        raise Boom("the judge is ill") from error


class Exploding(Digits):
    judge = staticmethod(explode_as_a_user_would)

    def __init__(self) -> None:
        self.count = 7


class ExplodingLater(Exploding):
    async def reward(self, problem: Problem, completion: Completion) -> float:  # type: ignore[override]
        await asyncio.sleep(0)
        return explode_as_a_user_would(problem, completion)


@pytest.mark.parametrize("environment", [Exploding(), ExplodingLater()], ids=["in a thread", "awaited"])
async def test_an_error_of_the_environment_ends_training_as_it_was_raised(
    environment: Digits, server: FakeServer, ledger: Ledger, tmp_path: Path
) -> None:
    error = await error_of(await start(tmp_path, ledger, environment=environment))

    assert isinstance(error, Boom)
    frames = [frame.name for frame in traceback.extract_tb(error.__traceback__)]
    assert frames[-1] == "explode_as_a_user_would"
    assert isinstance(error.__cause__, KeyError)
    assert "within" in "".join(traceback.format_exception(error))
    assert ledger.is_closed


@pytest.mark.parametrize("what", ["sample", "forward_backward", "optim_step", "submit", "sync", "create", "connect"])
async def test_an_error_of_the_server_ends_training_with_that_very_error(
    what: str, server: FakeServer, ledger: Ledger, tmp_path: Path
) -> None:
    boom = Boom("it is away")
    server.fail(what, boom)

    assert await error_of(await start(tmp_path, ledger)) is boom


async def test_an_error_ends_training_though_others_would_never_answer(
    server: FakeServer, ledger: Ledger, tmp_path: Path
) -> None:
    boom = Boom("it is away")

    async def pace(what: str) -> None:
        if what == "sample" and server.reached["sample"] == 3:
            raise boom
        if what == "sample":
            await asyncio.Event().wait()

    server.pace = pace

    assert await error_of(await start(tmp_path, ledger, staleness=3)) is boom


class LateProblems(Digits):
    """Has the problems of the first batch at once, and the others when it is allowed to; their rewards fail."""

    def __init__(self) -> None:
        super().__init__()
        loader = ShuffledLoader(len(self), seed=config().seed)
        self._first = {loader.draw().index for _ in range(config().batch_size)}
        self.allowed = threading.Event()

    def problem(self, index: int) -> Problem:
        if index not in self._first:
            assert self.allowed.wait(60)
        return super().problem(index)

    def reward(self, problem: Problem, completion: Completion) -> float:
        first = [Digits.problem(self, index) for index in self._first]
        return mean(problem, completion) if problem in first else explode_as_a_user_would(problem, completion)


async def test_a_generation_error_while_a_step_never_answers(
    server: FakeServer, ledger: Ledger, tmp_path: Path
) -> None:
    server.hold("forward_backward")
    environment = LateProblems()
    task = await start(tmp_path, ledger, environment=environment)

    await server.until("forward_backward")
    environment.allowed.set()

    assert isinstance(await error_of(task), Boom)


async def test_a_reward_that_is_not_a_number_ends_training_by_name(
    server: FakeServer, ledger: Ledger, tmp_path: Path
) -> None:
    environment = Digits()
    environment.judge = lambda problem, completion: float("nan")

    error = await error_of(await start(tmp_path, ledger, environment=environment))

    assert isinstance(error, RewardInvalid)
    assert "'p0'" in str(error) and "nan" in str(error)


async def test_an_error_lets_a_save_that_is_under_way_end(server: FakeServer, ledger: Ledger, tmp_path: Path) -> None:
    held, boom = server.hold("save_state"), Boom("it is away")
    task = await start(tmp_path, ledger, save_every=1)
    await server.until("save_state")
    server.fail("sample", boom)
    await until(lambda: not server._failures["sample"])
    for _ in range(20):
        await asyncio.sleep(0.001)
    assert not task.done()
    held.set()

    assert await error_of(task) is boom
    assert saved_steps(tmp_path) == [1]
    resumed = await trainer(tmp_path, ledger).run()
    assert (resumed.resumed_from, ledger.steps) == (1, [1, 2, 3, 4, 5, 6])


async def test_a_report_that_fails_does_not_end_training(server: FakeServer, ledger: Ledger, tmp_path: Path) -> None:
    def fails(record: object) -> None:
        raise OSError("no space")

    ledger.before_record = fails

    assert (await trainer(tmp_path, ledger).run()).progress.step == 6


@pytest.mark.parametrize("what", ["connect", "create", "tokenizer"])
async def test_cancelled_while_it_is_set_up_it_ends(
    what: str, server: FakeServer, ledger: Ledger, tmp_path: Path
) -> None:
    reached, go_on = threading.Event(), threading.Event()
    server.in_thread[what] = lambda: (reached.set(), go_on.wait(60))
    task = await start(tmp_path, ledger)
    await until(reached.is_set)
    task.cancel()
    go_on.set()

    await cancelled(task)
    assert saved_steps(tmp_path) == []
    assert (await trainer(tmp_path, ledger).run()).progress.step == 6


@pytest.mark.parametrize(
    ("what", "count", "kept"),
    [
        ("sample", 1, 0),  # before the first step
        ("sample", 5, 2),  # of the third batch; the save of step 2 waits for it too
        ("forward_backward", 1, 1),  # the step that was begun is finished
        ("forward_backward", 4, 4),
        ("optim_step", 3, 3),
        ("save_state", 1, None),  # of step 2; meanwhile others are made
        ("save_state", 3, 6),  # the last one
    ],
)
async def test_cancelled_while_it_waits_it_saves_the_last_step(
    what: str, count: int, kept: int | None, server: FakeServer, ledger: Ledger, tmp_path: Path
) -> None:
    held, reached = asyncio.Event(), asyncio.Event()

    async def pace(asked: str) -> None:
        if asked == what and server.reached[what] >= count:
            reached.set()
            await held.wait()

    server.pace = pace
    task = await start(tmp_path, ledger)
    await reached.wait()
    if what == "sample":
        await until(lambda: len(ledger.steps) == (kept or 0))
        await until(lambda: server.calls.count("sync") == (kept or 0) + 1)
    task.cancel()
    await asyncio.sleep(0.01)
    assert what == "sample" or not task.done()  # the step, or the save, is waited for
    held.set()

    await cancelled(task)
    last = ledger.steps[-1] if ledger.steps else 0
    assert kept is None or last == kept
    assert saved_steps(tmp_path)[-1] == last
    undisturbed = Ledger()
    await trainer(tmp_path / "undisturbed", undisturbed).run()
    await trainer(tmp_path, ledger).run()
    assert ledger.order == undisturbed.order


async def test_cancelled_in_a_step_that_fails_then_it_says_so_and_saves_nothing(
    server: FakeServer, ledger: Ledger, tmp_path: Path
) -> None:
    held, boom = server.hold("forward_backward"), Boom("it is away")
    server.fail("forward_backward", boom)
    task = await start(tmp_path, ledger)
    await server.until("forward_backward")
    task.cancel()
    await asyncio.sleep(0)
    held.set()

    assert await error_of(task) is boom
    assert saved_steps(tmp_path) == []


async def test_cancelled_twice_it_gives_up_at_once(server: FakeServer, ledger: Ledger, tmp_path: Path) -> None:
    server.hold("save_state")  # for ever
    task = await start(tmp_path, ledger)
    await server.until("save_state")
    task.cancel()
    await asyncio.sleep(0.01)
    assert not task.done()
    task.cancel()

    await cancelled(task)
    assert saved_steps(tmp_path) == []


async def test_if_nothing_can_be_saved_when_it_is_cancelled_it_says_so(
    server: FakeServer, ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saves, "_FINAL_PAUSE_SECONDS", 0.0)
    held = server.hold("sample")
    server.fail("save_state", *(OSError("full") for _ in range(3)))
    task = await start(tmp_path, ledger)
    await server.until("sample")
    task.cancel()

    assert isinstance(await error_of(task), FinalSaveFailed)
    held.set()


def test_ctrl_c_saves_the_last_step(server: FakeServer, ledger: Ledger, tmp_path: Path) -> None:
    def interrupt(record: Any) -> None:
        if record.step == 3:
            os.kill(os.getpid(), signal.SIGINT)

    async def main() -> None:
        await trainer(tmp_path, ledger, steps=1000, save_every=0).run()

    ledger.before_record = interrupt
    with pytest.raises(KeyboardInterrupt):
        asyncio.run(main())

    assert ledger.steps[-1] < 1000
    assert saved_steps(tmp_path) == ledger.steps[-1:]
