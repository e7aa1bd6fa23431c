from __future__ import annotations

import asyncio

import pytest

from chockstone.api.polls import Polls

LONG = 1000.0


async def test_news_end_a_poll() -> None:
    assert await Polls().hold(asyncio.sleep(0, "news"), timeout_seconds=LONG) == "news"


async def test_without_news_a_poll_ends_in_time() -> None:
    assert await Polls().hold(asyncio.sleep(LONG), timeout_seconds=0.001) is None


async def test_all_polls_end_with_the_server_and_later_ones_at_once() -> None:
    polls = Polls()
    held = [asyncio.create_task(polls.hold(asyncio.sleep(LONG), timeout_seconds=LONG)) for _ in range(3)]
    await asyncio.sleep(0)

    polls.end()

    assert await asyncio.gather(*held) == [None] * 3
    assert await polls.hold(asyncio.sleep(LONG), timeout_seconds=LONG) is None


async def test_what_is_known_already_is_told_even_at_the_end() -> None:
    polls = Polls()
    polls.end()

    async def known() -> str:
        return "news"

    assert await polls.hold(known(), timeout_seconds=LONG) == "news"


async def test_another_timeout_is_not_taken_for_the_polls_own() -> None:
    async def failing() -> None:
        raise TimeoutError("a database's")

    with pytest.raises(TimeoutError, match="a database's"):
        await Polls().hold(failing(), timeout_seconds=LONG)


async def test_a_poll_whose_client_has_gone_is_forgotten() -> None:
    polls = Polls()
    held = asyncio.create_task(polls.hold(asyncio.sleep(LONG), timeout_seconds=LONG))
    await asyncio.sleep(0)

    held.cancel()
    await asyncio.wait([held])
    polls.end()

    assert held.cancelled()
