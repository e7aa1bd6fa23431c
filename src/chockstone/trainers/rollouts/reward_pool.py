"""Judges: the environment's own functions, called where they cannot hold the event loop.

Plain ones run in threads of their own, because they may take their time and the trainer must not wait for a free one.
They are handed out in a thread too, and the loop hears of a group once, when all of it is judged: a thousand samples
would otherwise be thousands of callbacks in a row.
"""

from __future__ import annotations

import asyncio
import inspect
import math
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from typing import Any, Final, TypeVar

from chockstone.trainers.errors import RewardInvalid
from chockstone.trainers.reports.collector import Collector
from chockstone.trainers.rollouts.environment import Completion, Environment, Problem

T = TypeVar("T")
_LARGEST_REWARD: Final = 1e30  # beyond it advantages, which are float32, might not be finite
_THREADS: Final = 32  # they mostly wait, for a judge or a sandbox


class RewardPool:
    """Used in the event loop's thread."""

    def __init__(self, environment: Environment, collector: Collector) -> None:
        self._environment = environment
        self._collector = collector
        self._threads = ThreadPoolExecutor(_THREADS, "chockstone-environment")
        self._handing_out = ThreadPoolExecutor(1, "chockstone-judges")

    async def problem(self, index: int) -> Problem:
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._problem, index)

    async def rewards(self, problem: Problem, completions: Sequence[Completion]) -> list[float]:
        """Of each completion. Raises what the environment raised first, or RewardInvalid."""
        judge = self._environment.reward
        judged: list[Any]
        if inspect.iscoroutinefunction(judge):
            judged = await asyncio.gather(*(self._awaited(judge(problem, each)) for each in completions))
        else:
            judged = await self._rewards_in_threads(problem, completions)
            if any(inspect.isawaitable(each) for each in judged):
                judged = await asyncio.gather(*(self._awaited(each) for each in judged))
        return [_checked(value, problem, each) for value, each in zip(judged, completions, strict=True)]

    def close(self) -> None:
        for threads in (self._handing_out, self._threads):
            threads.shutdown(wait=False, cancel_futures=True)

    async def _rewards_in_threads(self, problem: Problem, completions: Sequence[Completion]) -> list[Any]:
        loop = asyncio.get_running_loop()
        calls = await loop.run_in_executor(self._handing_out, self._hand_out, problem, completions)
        try:
            return await asyncio.wrap_future(calls.results)
        finally:
            calls.cancel()

    def _hand_out(self, problem: Problem, completions: Sequence[Completion]) -> _Calls:
        return _Calls([self._threads.submit(self._reward, problem, each) for each in completions])

    def _problem(self, index: int) -> Problem:
        return call_environment(lambda: self._environment.problem(index))

    def _reward(self, problem: Problem, completion: Completion) -> Any:  # Any: what the environment returns
        with self._collector.timed("time/reward"):
            return call_environment(lambda: self._environment.reward(problem, completion))

    async def _awaited(self, judged: Any) -> Any:  # Any: as above
        with self._collector.timed("time/reward"):
            return await judged if inspect.isawaitable(judged) else judged


class _Calls:
    """Many calls and one future of their results, which has the first error as soon as there is one."""

    def __init__(self, calls: Sequence[Future[Any]]) -> None:
        self.results: Future[list[Any]] = Future()
        self.results.set_running_or_notify_cancel()  # whoever stops waiting for it does not settle it
        self._calls = calls
        self._left = len(calls)
        self._lock = threading.Lock()
        if not calls:
            self.results.set_result([])
        for call in calls:
            call.add_done_callback(self._note)

    def cancel(self) -> None:
        """Those that no thread has begun."""
        for call in self._calls:
            call.cancel()

    def _note(self, call: Future[Any]) -> None:
        error = CancelledError() if call.cancelled() else call.exception()
        with self._lock:
            self._left -= 1
            if self.results.done():
                return
            if error is not None:
                self.results.set_exception(error)
            elif self._left == 0:
                self.results.set_result([each.result() for each in self._calls])


def call_environment(call: Callable[[], T]) -> T:
    """For threads: no future of asyncio takes a StopIteration, and whoever waits for one would wait for ever."""
    try:
        return call()
    except StopIteration as error:
        raise RuntimeError("the environment raised StopIteration") from error


def _checked(judged: Any, problem: Problem, completion: Completion) -> float:  # Any: what the environment returned
    try:
        reward = float(judged)
    except (TypeError, ValueError, OverflowError):
        reward = math.nan
    if not abs(reward) <= _LARGEST_REWARD:  # nor is it if it is NaN
        raise RewardInvalid(
            f"the reward of problem {problem.problem_id!r} was {judged!r}, not a finite number of 32 bits; "
            f"the completion was {completion.text[:200]!r}"
        )
    return reward
