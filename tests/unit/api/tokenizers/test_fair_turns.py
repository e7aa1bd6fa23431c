from __future__ import annotations

import asyncio

import pytest

from chockstone.api.tokenizers.fair_turns import FairTurns


async def _work(turns: FairTurns, owner: str, done: list[str]) -> None:
    await turns.take(owner)
    done.append(owner)
    await asyncio.sleep(0)
    turns.give_back(owner)


async def test_an_owner_with_many_requests_waits_behind_its_own() -> None:
    turns, done = FairTurns(), list[str]()

    await asyncio.gather(*(_work(turns, owner, done) for owner in ["ada"] * 5 + ["bob"] * 2 + ["eve"]))

    assert done == ["ada", "ada", "bob", "eve", "ada", "bob", "ada", "ada"]
    assert turns.total == 0


async def test_who_leaves_gives_up_its_place() -> None:
    turns, done = FairTurns(), list[str]()
    await turns.take("ada")
    waiting = [asyncio.create_task(_work(turns, owner, done)) for owner in ("ada", "bob", "eve")]
    await asyncio.sleep(0)

    waiting[0].cancel()
    await asyncio.sleep(0)
    turns.give_back("ada")
    waiting[1].cancel()  # it was given the turn, and has not run since
    await asyncio.gather(*waiting, return_exceptions=True)

    assert done == ["eve"]
    assert turns.total == 0


async def test_an_owner_below_its_share_is_let_in_when_the_queue_is_full() -> None:
    turns = FairTurns()
    waiting = [asyncio.create_task(turns.take("ada")) for _ in range(4)]
    await asyncio.sleep(0)

    assert not turns.has_room("ada", most=4)
    assert turns.has_room("bob", most=4)
    assert turns.has_room("ada", most=5)

    for each in waiting:
        each.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting[-1]
