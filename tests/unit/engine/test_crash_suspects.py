from __future__ import annotations

import asyncio
from collections.abc import Coroutine

import pytest

from chockstone.engine.crash_suspects import CrashSuspects
from support.engine.making import settle_down


class Stage:
    """Who is in, and who is told to leave."""

    def __init__(self) -> None:
        self.suspects = CrashSuspects()
        self.inside: set[str] = set()
        self._leave = {name: asyncio.Event() for name in "abcd"}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def _alone(self, name: str) -> None:
        async with self.suspects.alone():
            await self._stay(name)

    async def _together(self, name: str, group: str) -> None:
        async with self.suspects.together(group):
            await self._stay(name)

    async def _stay(self, name: str) -> None:
        self.inside.add(name)
        try:
            await self._leave[name].wait()
        finally:
            self.inside.remove(name)

    async def alone(self, name: str) -> None:
        await self._begin(name, self._alone(name))

    async def together(self, name: str, group: str = "g") -> None:
        await self._begin(name, self._together(name, group))

    async def _begin(self, name: str, work: Coroutine[None, None, None]) -> None:
        self._tasks[name] = asyncio.create_task(work)
        await settle_down()

    async def leave(self, name: str) -> None:
        self._leave[name].set()
        await self._tasks[name]
        await settle_down()

    async def give_up(self, name: str) -> None:
        self._tasks[name].cancel()
        await asyncio.gather(self._tasks[name], return_exceptions=True)
        await settle_down()


@pytest.fixture
def stage() -> Stage:
    return Stage()


async def test_suspects_run_one_at_a_time(stage: Stage) -> None:
    await stage.alone("a")
    await stage.alone("b")
    assert stage.inside == {"a"}

    await stage.leave("a")

    assert stage.inside == {"b"}
    await stage.leave("b")


async def test_one_that_fails_leaves_its_turn_to_the_next(stage: Stage) -> None:
    with pytest.raises(ValueError, match="a bug"):
        async with stage.suspects.alone():
            raise ValueError("a bug")

    await stage.alone("a")

    assert stage.inside == {"a"}
    await stage.leave("a")


async def test_a_group_shares_one_turn_until_its_last_member_has_left(stage: Stage) -> None:
    await stage.together("a")
    await stage.alone("c")
    await stage.together("b")
    assert stage.inside == {"a", "b"}

    await stage.leave("a")
    assert stage.inside == {"b"}
    await stage.leave("b")

    assert stage.inside == {"c"}
    await stage.leave("c")


async def test_a_group_waits_for_whoever_is_alone_and_for_other_groups(stage: Stage) -> None:
    await stage.alone("a")
    await stage.together("b", "one")
    await stage.together("c", "other")
    assert stage.inside == {"a"}

    await stage.leave("a")
    assert stage.inside == {"b"}
    await stage.leave("b")

    assert stage.inside == {"c"}
    await stage.leave("c")


async def test_a_member_that_stops_waiting_takes_nobodys_turn(stage: Stage) -> None:
    await stage.alone("a")
    await stage.together("b")
    await stage.together("c")
    await stage.give_up("b")
    await stage.leave("a")
    assert stage.inside == {"c"}

    await stage.alone("d")
    await stage.give_up("c")

    assert stage.inside == {"d"}
    await stage.leave("d")


async def test_a_group_that_stopped_waiting_keeps_nobody_out(stage: Stage) -> None:
    await stage.alone("a")
    await stage.together("b")
    await stage.give_up("b")
    await stage.leave("a")

    await stage.alone("c")

    assert stage.inside == {"c"}
    await stage.leave("c")
