"""Call the environment's functions without blocking the event loop.

Plain functions run in a thread pool of their own: they may be slow, and other work of the trainer must not wait for a
free thread. One more thread submits the calls, and the event loop gets one callback per group, when all rewards of
the group are known: a thousand samples would otherwise be thousands of callbacks in a row.
"""

from __future__ import annotations

import asyncio
import inspect
import math
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from typing import Any, Final, TypeVar

from chockstone.trainers.collector import Collector
from chockstone.trainers.errors import RewardInvalid
from chockstone.trainers.rollouts.environment import Completion, Environment, Problem

T = TypeVar("T")
_LARGEST_REWARD: Final = 1e30  # beyond it advantages, which are float32, might not be finite
_THREADS: Final = 32  # they mostly wait, for a reward model or a sandbox


class RewardPool:
    """Runs the problems and rewards of one environment. Use it in the event loop's thread."""

    def __init__(self, environment: Environment, collector: Collector) -> None:
        self._environment = environment
        self._collector = collector
        self._threads = ThreadPoolExecutor(_THREADS, "chockstone-environment")
        self._submitting = ThreadPoolExecutor(1, "chockstone-rewards")

    async def problem(self, index: int) -> Problem:
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._problem, index)

    async def rewards(self, problem: Problem, completions: Sequence[Completion]) -> list[float]:
        """Return the reward of each completion. Raises the environment's first error, or RewardInvalid."""
        reward = self._environment.reward
        values: list[Any]
        if inspect.iscoroutinefunction(reward):
            values = await asyncio.gather(*(self._awaited(reward(problem, each)) for each in completions))
        else:
            values = await self._rewards_in_threads(problem, completions)
            if any(inspect.isawaitable(each) for each in values):
                values = await asyncio.gather(*(self._awaited(each) for each in values))
        return [_checked(value, problem, each) for value, each in zip(values, completions, strict=True)]

    def close(self) -> None:
        for threads in (self._submitting, self._threads):
            threads.shutdown(wait=False, cancel_futures=True)

    async def _rewards_in_threads(self, problem: Problem, completions: Sequence[Completion]) -> list[Any]:
        loop = asyncio.get_running_loop()
        calls = await loop.run_in_executor(self._submitting, self._submit, problem, completions)
        try:
            return await asyncio.wrap_future(calls.results)
        finally:
            calls.cancel()

    def _submit(self, problem: Problem, completions: Sequence[Completion]) -> _Calls:
        return _Calls([self._threads.submit(self._reward, problem, each) for each in completions])

    def _problem(self, index: int) -> Problem:
        return call_environment(lambda: self._environment.problem(index))

    def _reward(self, problem: Problem, completion: Completion) -> Any:  # Any: what the environment returns
        with self._collector.timed("time/reward"):
            return call_environment(lambda: self._environment.reward(problem, completion))

    async def _awaited(self, value: Any) -> Any:  # Any: as above
        with self._collector.timed("time/reward"):
            return await value if inspect.isawaitable(value) else value


class _Calls:
    """Many calls and one future of all their results. The first error of a call sets the future's error at once."""

    def __init__(self, calls: Sequence[Future[Any]]) -> None:
        self.results: Future[list[Any]] = Future()
        self.results.set_running_or_notify_cancel()  # so that cancelling a wait does not cancel the future
        self._calls = calls
        self._left = len(calls)
        self._lock = threading.Lock()
        if not calls:
            self.results.set_result([])
        for call in calls:
            call.add_done_callback(self._note)

    def cancel(self) -> None:
        """Cancel the calls that no thread has started."""
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
    """Replace StopIteration, which an asyncio future cannot hold: its waiter would wait for ever."""
    try:
        return call()
    except StopIteration as error:
        raise RuntimeError("the environment raised StopIteration") from error


def _checked(value: Any, problem: Problem, completion: Completion) -> float:  # Any: what the environment returned
    try:
        reward = float(value)
    except (TypeError, ValueError, OverflowError):
        reward = math.nan
    if not abs(reward) <= _LARGEST_REWARD:  # also true of NaN
        raise RewardInvalid(
            f"the reward of problem {problem.problem_id!r} was {value!r}, not a finite number of 32 bits; "
            f"the completion was {completion.text[:200]!r}"
        )
    return reward
