from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chockstone.trainers import Completion, Problem, ProblemDraw, RewardInvalid, ShuffledLoader
from chockstone.trainers.collector import Collector
from chockstone.trainers.rollouts.generation import SamplingPolicy
from chockstone.trainers.rollouts.worker import RolloutWorker, draw_seed
from support.trainers.fakes import Digits, FakeSampler, FakeServer, Ledger, Tokenizer, config, trainer


@asynccontextmanager
async def worker(
    environment: Any, *, tokenizer: Tokenizer | None = None, **changes: Any
) -> AsyncIterator[RolloutWorker]:
    base: Any = FakeSampler(FakeServer(), "base") if changes.get("kl_coefficient") else None
    made = RolloutWorker(environment, tokenizer or Tokenizer(), config(**changes), Collector(), base)
    yield made
    made.close()


def policy(version: int = 0) -> SamplingPolicy:
    return SamplingPolicy(version, FakeSampler(FakeServer(), f"weights {version}"))  # type: ignore[arg-type]


async def test_a_group_is_what_the_policy_answered_and_what_it_is_worth() -> None:
    async with worker(Digits(), group_size=5) as made:
        group = await made.generate_group(ProblemDraw(3, 0, 2), policy(4))

    assert (group.problem_id, group.version, group.prompt.tolist()) == ("p2", 4, list(b"2?"))
    assert len(group.samples) == 5
    for sample in group.samples:
        assert sample.reward == pytest.approx(sample.tokens.mean() / 10)
        assert sample.logprobs.dtype == np.float32
        assert len(sample.logprobs) == len(sample.tokens)
        assert sample.base_logprobs is None


async def test_the_same_draw_gets_the_same_answer_and_another_one_another() -> None:
    async with worker(Digits(1), group_size=4) as made:
        groups = [await made.generate_group(ProblemDraw(number, number, 0), policy()) for number in (0, 0, 1)]

    tokens = [[sample.tokens.tolist() for sample in group.samples] for group in groups]
    assert tokens[0] == tokens[1] != tokens[2]


def test_seeds_are_spread_and_fit_what_servers_take() -> None:
    seeds = [draw_seed(seed, number) for seed in range(10) for number in range(1000)]

    assert len(set(seeds)) == len(seeds)
    assert min(seeds) >= 0 and max(seeds) < 2**31


async def test_messages_go_through_the_chat_template() -> None:
    class Chat(Digits):
        def problem(self, index: int) -> Problem:
            return Problem("p", ({"role": "user", "content": "hi"},))

    async with worker(Chat()) as made:
        group = await made.generate_group(ProblemDraw(0, 0, 0), policy())

    assert group.prompt.tolist() == [1, *b"hi", 2]


async def test_samples_are_compared_with_the_base_where_they_were_sampled() -> None:
    async with worker(Digits(), kl_coefficient=0.1) as made:
        group = await made.generate_group(ProblemDraw(0, 0, 0), policy())

    for sample in group.samples:
        assert sample.base_logprobs is not None
        assert sample.base_logprobs.tolist() == pytest.approx((-sample.tokens / 100).tolist())


async def test_many_at_once_use_the_tokenizer_one_by_one() -> None:
    never = threading.Event()
    tokenizer = Tokenizer()
    tokenizer.before = lambda: never.wait(0.001)  # while another one would come
    async with worker(Digits(), tokenizer=tokenizer) as made:
        groups = await asyncio.gather(
            *(made.generate_group(ProblemDraw(number, 0, 0), policy()) for number in range(8))
        )

    assert len(groups) == 8


def always(value: Any) -> Callable[..., Any]:
    return lambda problem, completion: value


@pytest.mark.parametrize("value", [float("nan"), float("-inf"), None, "much", [1.0]], ids=repr)
async def test_a_reward_that_is_not_a_number_is_named(value: object) -> None:
    environment = Digits()
    environment.judge = always(value)
    async with worker(environment) as made:
        with pytest.raises(RewardInvalid, match=r"the reward of problem 'p2' was .*; the completion was '\d"):
            await made.generate_group(ProblemDraw(0, 0, 2), policy())


@pytest.mark.parametrize("value", [1, True, np.float32(0.5), "0.25"], ids=repr)
async def test_what_is_as_good_as_a_number_is_taken(value: Any) -> None:
    environment = Digits()
    environment.judge = always(value)
    async with worker(environment) as made:
        group = await made.generate_group(ProblemDraw(0, 0, 2), policy())

    assert group.rewards == [float(value)] * 2
    assert all(type(reward) is float for reward in group.rewards)


class Judged(Digits):
    async def reward(self, problem: Problem, completion: Completion) -> float:  # type: ignore[override]
        await asyncio.sleep(0)
        return 0.5


class Wrapped(Digits):
    def reward(self, problem: Problem, completion: Completion) -> Any:
        return Judged().reward(problem, completion)


class Called(Digits):
    """An object whose call is a coroutine is not a coroutine function."""

    def __init__(self) -> None:
        super().__init__()
        self.reward = self  # type: ignore[assignment,method-assign]

    async def __call__(self, problem: Problem, completion: Completion) -> float:
        return 0.5


@pytest.mark.parametrize("environment", [Judged(), Wrapped(), Called()], ids=lambda each: type(each).__name__)
async def test_rewards_may_be_awaited(environment: Digits) -> None:
    async with worker(environment) as made:
        group = await made.generate_group(ProblemDraw(0, 0, 2), policy())

    assert group.rewards == [0.5, 0.5]


async def test_an_evaluation_asks_once_for_what_is_most_likely() -> None:
    asked: list[Any] = []

    class Noting(FakeSampler):
        async def sample_async(self, **options: Any) -> Any:  # type: ignore[override]
            asked.append((options["num_samples"], options["sampling_params"].temperature))
            return await super().sample_async(**options)

    async with worker(Digits()) as made:
        await made.evaluate([Digits().problem(1)], SamplingPolicy(1, Noting(FakeServer(), "w")))  # type: ignore[arg-type]

    assert asked == [(1, 0.0)]


async def test_rewards_that_take_their_time_do_not_keep_a_step_waiting(server: FakeServer, tmp_path: Path) -> None:
    """Those of the next batch wait for a step of this one here, and are more than there are threads for all else."""
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(2))
    loader = ShuffledLoader(7, seed=0)
    first_batch = {f"p{loader.draw().index}" for _ in range(2)}
    stepped = threading.Event()
    server.in_thread["step"] = stepped.set
    judged: list[bool] = []

    def judge(problem: Problem, completion: Completion) -> float:
        judged.append(problem.problem_id in first_batch or stepped.wait(20))
        return float(sum(completion.tokens))

    environment = Digits()
    environment.judge = judge

    await trainer(tmp_path, Ledger(), environment=environment, steps=2, group_size=4, save_every=0).run()

    assert len(judged) == 16
    assert all(judged)
