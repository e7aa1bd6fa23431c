"""Nothing is lost at a flush and nothing is counted twice, however many tasks and threads add."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

import pytest

from chockstone.trainers.collector import Collector, Measure

THREADS, TASKS, ADDS = 4, 50, 200
PATIENCE_SECONDS = 60.0


class Collecting(Protocol):
    def add(self, name: str, value: float) -> None: ...
    def timed(self, name: str) -> AbstractContextManager[None]: ...
    def drain(self) -> dict[str, Measure]: ...


class CopyAndClear:
    """How it is done wrong: what is added between the copy and the clear is lost.

    Here one value always is: the first add waits for the first copy, and the first clear for that add.
    """

    def __init__(self) -> None:
        self._measures: dict[str, Measure] = {}
        self._copied, self._added = threading.Event(), threading.Event()

    def add(self, name: str, value: float) -> None:
        assert self._copied.wait(PATIENCE_SECONDS)
        known = self._measures.get(name)
        self._measures[name] = known.with_value(value) if known else Measure(1, value, value, value, value)
        self._added.set()

    def timed(self, name: str) -> AbstractContextManager[None]:
        raise NotImplementedError

    def drain(self) -> dict[str, Measure]:
        drained = dict(self._measures)
        self._copied.set()
        assert self._added.wait(PATIENCE_SECONDS)
        self._measures.clear()
        return drained


class HeldAcrossAwait:
    """How it is done wrong without any thread: the flush is one assignment, but a task still holds what was flushed."""

    def __init__(self) -> None:
        self._seconds: dict[str, Measure] = {}

    def add(self, name: str, value: float) -> None:
        raise NotImplementedError

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        seconds = self._seconds
        yield
        seconds[name] = Measure(1, 1.0, 1.0, 1.0, 1.0)

    def drain(self) -> dict[str, Measure]:
        drained, self._seconds = dict(self._seconds), {}
        return drained


class Ledger:
    """Counts and totals over all drains."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self.totals: dict[str, float] = {}

    def book(self, drained: dict[str, Measure]) -> None:
        for name, measure in drained.items():
            self.counts[name] = self.counts.get(name, 0) + measure.count
            self.totals[name] = self.totals.get(name, 0.0) + measure.total


def add_from_everywhere_while_draining(collector: Collecting) -> Ledger:
    """Each of the workers adds 1, 2, 3, …, so that a value lost cannot be made up for by another counted twice."""
    ledger, is_over = Ledger(), threading.Event()

    def drain() -> None:
        while not is_over.is_set():
            ledger.book(collector.drain())

    def work(number: int) -> None:
        for value in range(1, ADDS + 1):
            collector.add("shared", float(value))
            collector.add(f"of thread {number}", float(value))

    async def task() -> None:
        for value in range(1, ADDS + 1):
            collector.add("shared", float(value))
            await asyncio.sleep(0)

    async def tasks() -> None:
        await asyncio.gather(*(task() for _ in range(TASKS)))

    drainer = threading.Thread(target=drain)
    workers = [threading.Thread(target=work, args=(number,)) for number in range(THREADS)]
    workers.append(threading.Thread(target=lambda: asyncio.run(tasks())))
    for thread in (drainer, *workers):
        thread.start()
    for thread in workers:
        thread.join()
    is_over.set()
    drainer.join()
    ledger.book(collector.drain())
    return ledger


def assert_all_is_there(ledger: Ledger) -> None:
    one = ADDS * (ADDS + 1) / 2
    alone = {f"of thread {number}": one for number in range(THREADS)}

    assert ledger.totals == {"shared": (THREADS + TASKS) * one, **alone}
    assert ledger.counts == {"shared": (THREADS + TASKS) * ADDS, **dict.fromkeys(alone, ADDS)}


@pytest.fixture
def hurried() -> Iterator[None]:
    """Threads take turns as often as they can, so that a race that can be lost is lost."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(usual)


@pytest.mark.usefixtures("hurried")
def test_what_tasks_and_threads_add_while_it_is_drained_arrives_exactly_once() -> None:
    ledger = add_from_everywhere_while_draining(Collector())

    assert_all_is_there(ledger)


def test_the_check_above_finds_a_drain_that_copies_and_clears() -> None:
    ledger = add_from_everywhere_while_draining(CopyAndClear())

    with pytest.raises(AssertionError):
        assert_all_is_there(ledger)


async def time_a_block_that_is_flushed_in_the_middle(collector: Collecting) -> Ledger:
    ledger, is_inside, may_end = Ledger(), asyncio.Event(), asyncio.Event()

    async def block() -> None:
        with collector.timed("block"):
            is_inside.set()
            await may_end.wait()

    async with asyncio.TaskGroup() as group:
        group.create_task(block())
        await is_inside.wait()
        ledger.book(collector.drain())
        may_end.set()
    ledger.book(collector.drain())
    return ledger


async def test_a_block_that_was_running_at_a_flush_is_in_the_next_one() -> None:
    ledger = await time_a_block_that_is_flushed_in_the_middle(Collector())

    assert ledger.counts == {"block": 1}


async def test_the_check_above_finds_a_reference_held_across_an_await() -> None:
    ledger = await time_a_block_that_is_flushed_in_the_middle(HeldAcrossAwait())

    assert ledger.counts == {}


def test_a_measure_is_of_the_values_since_the_last_drain() -> None:
    collector = Collector()
    collector.add("reward", 100.0)
    collector.drain()
    for value in (2.0, -1.0, 5.0, 4.0):
        collector.add("reward", value)

    drained = collector.drain()

    assert drained == {"reward": Measure(count=4, total=10.0, least=-1.0, most=5.0, last=4.0)}
    assert drained["reward"].mean == 2.5
    assert collector.drain() == {}


def test_a_drained_dictionary_does_not_change_any_more() -> None:
    collector = Collector()
    collector.add("reward", 1.0)
    drained = collector.drain()

    collector.add("reward", 2.0)

    assert drained == {"reward": Measure(1, 1.0, 1.0, 1.0, 1.0)}


def test_the_seconds_of_a_block_that_raises_are_added() -> None:
    ticks = iter([10.0, 12.5])
    collector = Collector(clock=lambda: next(ticks))

    with pytest.raises(KeyError), collector.timed("train"):
        raise KeyError

    assert collector.drain()["train"].total == 2.5


async def test_the_seconds_of_a_block_that_is_cancelled_are_added() -> None:
    collector, is_inside = Collector(), asyncio.Event()

    async def block() -> None:
        with collector.timed("generate"):
            is_inside.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(block())
    await is_inside.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)

    assert collector.drain()["generate"].count == 1
