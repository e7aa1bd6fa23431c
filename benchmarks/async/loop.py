"""The loop: an asyncio program that keeps requests in flight, trains on what comes back, and saves now and then.

Its state is a tree of torch tensors, as in any training loop. The task that changes or copies it holds its lock.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import cycle

import tinker
import torch
from tinker import types

from benchmarks.checkpoints.states import State
from benchmarks.live.models import Tokens

PAUSE_SECONDS = 0.01
_ANSWERS_PER_STEP = 16
_TRAINED = 256  # the step's arithmetic is on a matrix so wide: a few milliseconds


@dataclass(frozen=True, slots=True)
class Traffic:
    """The sampling requests that the program sends again and again."""

    sampler: tinker.SamplingClient
    prompts: Sequence[Tokens]
    lengths: Sequence[int]  # tokens of the answers, in turn: different ones do not come all at once
    in_flight: int


@dataclass(frozen=True, slots=True)
class Answer:
    asked: float
    came: float
    tokens: int

    def tokens_between(self, begin: float, end: float) -> float:
        """Its tokens count as spread evenly from the request to the answer."""
        overlap = min(end, self.came) - max(begin, self.asked)
        return self.tokens * max(0.0, overlap) / (self.came - self.asked)


@dataclass(slots=True)
class Loop:
    """Made by ``running``; everything in here belongs to one event loop."""

    state: State
    answers: list[Answer] = field(default_factory=list)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    _in_flight: dict[int, float] = field(default_factory=dict)  # request -> when it was asked
    _untrained: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(0))

    def rate(self, begin: float, end: float) -> float:
        """Tokens per second; ask when the loop has caught up with ``end``."""
        return sum(answer.tokens_between(begin, end) for answer in self.answers) / (end - begin)

    async def catch_up(self) -> None:
        """Waits until every request that was sent before this call is answered."""
        now = time.perf_counter()
        while not self._in_flight or min(self._in_flight.values()) < now:
            await asyncio.sleep(PAUSE_SECONDS)

    async def generate(self, traffic: Traffic, requests: Iterator[tuple[int, tuple[Tokens, int]]]) -> None:
        for number, (tokens, wanted) in requests:
            params = types.SamplingParams(max_tokens=wanted, temperature=1.0, stop=[])
            prompt = types.ModelInput.from_ints(tokens)
            self._in_flight[number] = time.perf_counter()
            answer = await traffic.sampler.sample_async(prompt=prompt, num_samples=1, sampling_params=params)
            asked = self._in_flight.pop(number)
            self.answers.append(Answer(asked, time.perf_counter(), len(answer.sequences[0].tokens)))
            self._untrained.release()

    async def train(self) -> None:
        while True:
            for _ in range(_ANSWERS_PER_STEP):
                await self._untrained.acquire()
            async with self.lock:
                await asyncio.to_thread(self._step)

    def _step(self) -> None:
        """A little arithmetic whose result changes the state."""
        weight = torch.eye(_TRAINED, requires_grad=True)
        (torch.ones(_TRAINED, _TRAINED) @ weight).square().mean().backward()  # type: ignore[no-untyped-call]  # torch's
        next(iter(self.state.flat().values())).view(-1)[0] += float(weight.detach()[0, 0]) * 1e-6


@asynccontextmanager
async def running(state: State, traffic: Traffic) -> AsyncIterator[Loop]:
    """Generates and trains while the ``async with`` block runs, and has begun on entering. Failures are raised."""
    loop = Loop(state)
    requests = enumerate(zip(cycle(traffic.prompts), cycle(traffic.lengths), strict=False))
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(loop.generate(traffic, requests)) for _ in range(traffic.in_flight)]
        tasks.append(group.create_task(loop.train()))
        await loop.catch_up()
        yield loop
        for task in tasks:
            task.cancel()


async def repeat(action: Callable[[], Awaitable[object]], seconds: float) -> tuple[float, float, int]:
    """Repeat ``action`` for at least ``seconds``, and at least once. Returns begin, end and the number of actions."""
    began = time.perf_counter()
    count = 0
    while not count or time.perf_counter() - began < seconds:
        await action()
        await asyncio.sleep(0)  # an action that never awaits lets the loop turn in between, too
        count += 1
    return began, time.perf_counter(), count
