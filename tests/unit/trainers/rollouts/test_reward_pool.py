from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from chockstone.trainers import Completion, Problem
from chockstone.trainers.collector import Collector
from chockstone.trainers.rollouts.reward_pool import RewardPool
from support.trainers.fakes import Digits

PROBLEM = Problem("p", "?")
COMPLETIONS = [Completion(str(number), (number,), is_truncated=False) for number in range(100)]


@pytest.fixture
def environment() -> Digits:
    return Digits()


@pytest.fixture
def collector() -> Collector:
    return Collector()


@pytest.fixture
def pool(environment: Digits, collector: Collector) -> Iterator[RewardPool]:
    made = RewardPool(environment, collector)
    yield made
    made.close()


async def test_rewards_come_in_the_order_of_the_completions_and_are_timed_each(
    pool: RewardPool, environment: Digits, collector: Collector
) -> None:
    environment.judge = lambda problem, completion: float(completion.text)

    assert await pool.rewards(PROBLEM, COMPLETIONS) == [float(number) for number in range(100)]
    assert collector.drain()["time/reward"].count == 100


async def test_the_loop_hears_of_a_group_once_it_is_judged_not_of_each_sample(
    pool: RewardPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = asyncio.get_running_loop()
    call_soon, calls = loop.call_soon_threadsafe, []

    def count(*given: Any, **options: Any) -> Any:
        calls.append(given)
        return call_soon(*given, **options)

    monkeypatch.setattr(loop, "call_soon_threadsafe", count)

    await pool.rewards(PROBLEM, COMPLETIONS)

    assert len(calls) == 2  # all are handed out; all are judged


async def test_the_first_error_is_raised_at_once_and_what_was_not_begun_never_is(
    pool: RewardPool, environment: Digits
) -> None:
    held, begun = threading.Event(), []

    def judge(problem: Problem, completion: Completion) -> float:
        begun.append(completion.text)
        if completion.text == "3":
            raise KeyError("a bug of its own")
        held.wait(20)
        return 0.0

    environment.judge = judge

    with pytest.raises(KeyError, match="a bug of its own"):
        await pool.rewards(PROBLEM, COMPLETIONS)
    held.set()

    pool.close()
    pool._threads.shutdown(wait=True)
    assert len(begun) < 50


async def test_whoever_is_cancelled_waits_for_no_judge(pool: RewardPool, environment: Digits) -> None:
    held, begun = threading.Event(), threading.Event()

    def judge(problem: Problem, completion: Completion) -> float:
        begun.set()
        held.wait(20)
        return 0.0

    environment.judge = judge
    waiting = asyncio.create_task(pool.rewards(PROBLEM, COMPLETIONS))
    await asyncio.to_thread(begun.wait)

    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting

    assert not held.is_set()
    held.set()


async def test_nothing_is_judged_where_there_is_nothing(pool: RewardPool) -> None:
    assert await pool.rewards(PROBLEM, []) == []
