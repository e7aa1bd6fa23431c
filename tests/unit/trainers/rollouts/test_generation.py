from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest

from chockstone.trainers.errors import TrainerError
from chockstone.trainers.rollouts.generation import PendingGroup, RolloutGenerator, SamplingPolicy, restore_window
from chockstone.trainers.rollouts.loader import ProblemDraw, ShuffledLoader
from chockstone.trainers.rollouts.rollouts import RolloutGroup
from support.trainers.fakes import config


def group_of(draw: ProblemDraw, version: int) -> RolloutGroup:
    return RolloutGroup(draw, f"p{draw.index}", version, np.zeros(1, np.int32), ())


def policy(version: int) -> SamplingPolicy:
    return SamplingPolicy(version, None)  # type: ignore[arg-type]  # nobody samples


class Table:
    """Where groups are made; each waits for ``finish``, unless it is told how long it takes."""

    def __init__(self, wait: Callable[[ProblemDraw], Awaitable[object]] | None = None) -> None:
        self.begun: list[tuple[int, int]] = []  # number of the draw, version
        self._events: dict[int, asyncio.Event] = {}
        self._wait = wait or (lambda draw: self._event(draw.number).wait())

    async def generate_group(self, draw: ProblemDraw, chosen: SamplingPolicy) -> RolloutGroup:
        self.begun.append((draw.number, chosen.version))
        await self._wait(draw)
        return group_of(draw, chosen.version)

    async def finish(self, *numbers: int) -> None:
        for number in numbers:
            self._event(number).set()
        for _ in range(5):
            await asyncio.sleep(0)

    def _event(self, number: int) -> asyncio.Event:
        return self._events.setdefault(number, asyncio.Event())


@asynccontextmanager
async def generation(
    table: Table, restored: Iterable[PendingGroup] = (), trained: int = 0, **changes: Any
) -> AsyncIterator[RolloutGenerator]:
    async with asyncio.TaskGroup() as tasks:
        loader = ShuffledLoader(7, seed=1)
        made = RolloutGenerator(
            loader, table.generate_group, tasks.create_task, config(**changes), trained=trained, restored=restored
        )
        yield made
        made.close()
        for task in list(tasks._tasks):
            task.cancel()


@pytest.mark.parametrize(("staleness", "ahead"), [(0, 2), (1, 4), (3, 8)])
async def test_no_more_is_begun_than_staleness_allows(staleness: int, ahead: int) -> None:
    table = Table()
    async with generation(table, staleness=staleness) as made:
        made.publish(policy(0))
        await table.finish(*range(12))

        assert table.begun == [(number, 0) for number in range(ahead)]


async def test_the_next_batch_is_generated_by_the_policy_that_this_one_is_trained_into() -> None:
    table = Table()
    async with generation(table, staleness=1) as made:
        made.publish(policy(0))
        await table.finish(0, 1)
        batch = await made.next_batch()
        assert table.begun == [(0, 0), (1, 0), (2, 0), (3, 0)]  # while it is trained on
        made.finish_batch()
        assert len(table.begun) == 4  # not before there is a policy that may
        made.publish(policy(1))
        await table.finish()

        assert [group.draw.number for group in batch] == [0, 1]
        assert table.begun[4:] == [(4, 1), (5, 1)]


async def test_a_batch_is_the_next_draws_whoever_ends_first() -> None:
    table = Table()
    async with generation(table, staleness=3) as made:
        made.publish(policy(0))
        await table.finish(7, 5, 3, 2)
        waiting = asyncio.create_task(made.next_batch())
        await table.finish(1)
        assert not waiting.done()
        await table.finish(0)

        assert [group.draw.number for group in await waiting] == [0, 1]


async def test_concurrency_is_never_exceeded_and_always_used() -> None:
    table = Table()
    async with generation(table, staleness=3, concurrency=2) as made:
        made.publish(policy(0))
        await table.finish()
        assert [number for number, _ in table.begun] == [0, 1]
        await table.finish(1)
        assert [number for number, _ in table.begun] == [0, 1, 2]
        made.publish(policy(0))  # again: two are running still
        await table.finish()
        assert len(table.begun) == 3
        await table.finish(0, 2)

        assert [number for number, _ in table.begun] == [0, 1, 2, 3, 4]


async def test_a_group_that_waited_for_its_turn_gets_the_newest_policy() -> None:
    table = Table()
    async with generation(table, staleness=3, concurrency=1) as made:
        made.publish(policy(0))
        await table.finish()
        made.publish(policy(1))
        await table.finish(0)

        assert table.begun == [(0, 0), (1, 1)]


async def test_nothing_is_drawn_beyond_the_last_step() -> None:
    table = Table()
    async with generation(table, staleness=3, steps=2) as made:
        made.publish(policy(0))

        assert len(made.window) == 4


@pytest.mark.parametrize("concurrency", [None, 2, 5])
@pytest.mark.parametrize("staleness", [0, 1, 2, 3, 5])
async def test_samples_are_never_older_than_allowed(staleness: int, concurrency: int | None) -> None:
    seen: set[int] = set()
    for seed in range(10):
        chance = random.Random(seed)

        async def wait(_: object, chance: random.Random = chance) -> None:
            for _ in range(chance.choice([0, 1, 2, 30])):
                await asyncio.sleep(0)

        async with generation(Table(wait), staleness=staleness, concurrency=concurrency, steps=12) as made:
            made.publish(policy(0))
            for step in range(12):
                groups = await made.next_batch()
                assert [group.draw.number for group in groups] == [2 * step, 2 * step + 1]
                seen |= {step - group.version for group in groups}
                await wait(None)
                made.finish_batch()
                made.publish(policy(step + 1))

    assert max(seen) <= staleness
    if concurrency is None:
        assert max(seen) == staleness  # it is used


async def test_closing_ends_what_waits_and_begins_nothing() -> None:
    table = Table()
    async with generation(table, staleness=1) as made:
        made.publish(policy(0))
        await table.finish(0)
        made.close()
        made.publish(policy(1))

        assert [await pending.wait() is not None for pending in made.window] == [True, False, False, False]
        assert len(table.begun) == 4


async def test_an_error_comes_out_where_it_was_spawned_and_its_slot_settles() -> None:
    async def fails(_: object) -> None:
        raise OSError("no answer")

    groups: list[PendingGroup] = []
    with pytest.raises(ExceptionGroup) as raised:
        async with generation(Table(fails), staleness=0) as made:
            made.publish(policy(0))
            groups += made.window
            await asyncio.gather(*(pending.wait() for pending in groups))
            await asyncio.sleep(60)

    assert {str(error) for error in raised.value.exceptions} == {"no answer"}


async def test_a_rollout_that_cancels_itself_is_an_error_and_not_the_end_that_a_user_asked_for() -> None:
    async def cancels(_: object) -> None:
        raise asyncio.CancelledError

    with pytest.raises(ExceptionGroup) as raised:
        async with generation(Table(cancels), staleness=0) as made:
            made.publish(policy(0))
            await asyncio.sleep(60)

    error = raised.value.exceptions[0]
    assert isinstance(error, TrainerError)
    assert "draw 0 was cancelled from within" in str(error)


async def test_whoever_waits_for_a_group_may_be_cancelled_without_harm() -> None:
    table = Table()
    async with generation(table, staleness=0) as made:
        made.publish(policy(0))
        for waiter in (made.next_batch(), made.window[0].wait()):
            waiting = asyncio.create_task(waiter)
            await table.finish()
            waiting.cancel()
            await asyncio.wait([waiting])
        await table.finish(0, 1)

        assert len(await made.next_batch()) == 2


def restored(staleness: int, *versions: int | None, trained: int) -> list[PendingGroup]:
    draws = [ProblemDraw(2 * trained + place, 0, place) for place in range(len(versions))]
    window = [
        (draw, None if made is None else group_of(draw, made)) for draw, made in zip(draws, versions, strict=True)
    ]
    return restore_window(window, config(staleness=staleness), trained=trained)


async def test_a_restored_group_is_trained_on_and_one_that_was_lost_generated_again() -> None:
    table = Table()
    async with generation(table, restored(1, 2, None, 3, None, trained=3), trained=3, staleness=1) as made:
        made.publish(policy(3))
        await table.finish(7, 9)
        batch = await made.next_batch()

        assert table.begun == [(7, 3), (9, 3)]
        assert [(group.draw.number, group.version) for group in batch] == [(6, 2), (7, 3)]
        assert len(made.window) == 4


async def test_a_lower_limit_than_the_window_was_made_under_is_kept() -> None:
    table = Table(lambda draw: asyncio.sleep(0))
    async with generation(table, restored(0, 2, 2, 3, None, 3, 3, trained=3), trained=3, staleness=0) as made:
        staleness = []
        for step in range(3, 6):
            made.publish(policy(step))
            staleness += [step - group.version for group in await made.next_batch()]
            made.finish_batch()

        assert staleness == [0] * 6
        assert [number for number, _ in table.begun] == [6, 7, 8, 9, 10, 11]
