from __future__ import annotations

import asyncio

import pytest

from chockstone.engine.samples import completions
from chockstone.engine.samples.completions import CURSORS, Feed, SampleCompletion


def feed_of(*request_ids: str) -> Feed:
    feed = Feed()
    for request_id in request_ids:
        feed.add(request_id, size_bytes=10, is_failure=False)
    return feed


async def seen(feed: Feed, cursor: int, timeout_seconds: float = 0.001) -> tuple[list[str], int]:
    found, cursor = await feed.after(cursor, timeout_seconds)
    return [completion.request_id for completion in found], cursor


async def test_a_cursor_gets_what_came_after_it_in_order() -> None:
    feed = feed_of("a", "b", "c")

    assert await seen(feed, 0) == (["a", "b", "c"], 3)
    assert await seen(feed, 1) == (["b", "c"], 3)
    assert await seen(feed, 2) == (["c"], 3)


async def test_a_completion_says_how_large_it_is_and_whether_it_failed() -> None:
    feed = Feed()
    feed.add("a", size_bytes=7, is_failure=True)

    assert await feed.after(0, 0) == ([SampleCompletion(1, "a", 7, True)], 1)


async def test_without_news_the_cursor_stays() -> None:
    assert await seen(feed_of("a"), 1) == ([], 1)
    assert await seen(Feed(), 0) == ([], 0)


async def test_the_same_cursor_gets_the_same_answer_again() -> None:
    feed = feed_of("a", "b")

    assert await seen(feed, 1) == await seen(feed, 1) == (["b"], 2)


async def test_news_wake_everyone_who_waits() -> None:
    feed = feed_of("a")
    waiters = [asyncio.create_task(seen(feed, 1, 60)) for _ in range(2)]
    await asyncio.sleep(0)

    feed.add("b", size_bytes=1, is_failure=False)

    assert await asyncio.gather(*waiters) == [(["b"], 2)] * 2


async def test_a_second_wait_is_for_the_next_news() -> None:
    feed = feed_of("a")
    waiting = asyncio.create_task(seen(feed, 1, 60))
    await asyncio.sleep(0)

    assert not waiting.done()
    feed.add("b", size_bytes=1, is_failure=False)
    assert await waiting == (["b"], 2)


async def test_what_was_acknowledged_is_not_told_again() -> None:
    feed = feed_of("a", "b", "c")

    feed.acknowledge(["a", "c", "never heard of"])
    feed.acknowledge(["a"])

    assert await seen(feed, 0) == (["b"], 3)


async def test_a_client_behind_acknowledged_news_catches_up_at_once() -> None:
    feed = feed_of("a", "b")
    feed.acknowledge(["b"])

    assert await seen(feed, 1, 60) == ([], 2)


async def test_a_cursor_from_the_future_is_told_everything() -> None:
    feed = feed_of("a", "b")

    assert await seen(feed, 99) == (["a", "b"], 2)


async def test_a_cursor_of_an_earlier_server_is_told_everything() -> None:
    feed = Feed(first=100)
    for request_id in ("a", "b"):
        feed.add(request_id, size_bytes=10, is_failure=False)

    for cursor in (0, 1, 99, 100, 103):
        assert await seen(feed, cursor) == (["a", "b"], 102)
    assert await seen(feed, 101) == (["b"], 102)
    assert await seen(feed, 102) == ([], 102)


async def test_a_first_poll_gets_a_cursor_at_once_that_later_ones_wait_with() -> None:
    feed = Feed(first=100)

    assert await seen(feed, 0, 60) == ([], 100)
    waiting = asyncio.create_task(seen(feed, 100, 60))
    await asyncio.sleep(0)
    assert not waiting.done()
    feed.add("a", size_bytes=1, is_failure=False)
    assert await waiting == (["a"], 101)


def test_a_cursor_that_no_server_with_this_journal_gave_out_is_unknown() -> None:
    feed = Feed(first=7 * CURSORS, earliest=5 * CURSORS)

    assert all(feed.knows(cursor) for cursor in (0, 5 * CURSORS, 6 * CURSORS + 3, 7 * CURSORS, 7 * CURSORS + 1))
    assert not any(feed.knows(cursor) for cursor in (1, 5 * CURSORS - 1, 8 * CURSORS))


async def test_while_the_journal_is_read_every_cursor_is_kept() -> None:
    feed = Feed(first=None)
    waiting = asyncio.create_task(seen(feed, 8 * CURSORS, 60))
    await asyncio.sleep(0)

    assert feed.knows(8 * CURSORS)
    assert await seen(feed, 5) == ([], 5)
    assert not waiting.done()
    feed.wake()
    assert await waiting == ([], 8 * CURSORS)


async def test_a_cursor_from_the_future_waits_when_there_is_nothing_yet() -> None:
    feed = Feed()
    waiting = asyncio.create_task(seen(feed, 99, 60))
    await asyncio.sleep(0)

    feed.add("a", size_bytes=1, is_failure=False)

    assert await waiting == (["a"], 1)


async def test_what_nobody_acknowledges_does_not_grow_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(completions, "KEPT", 2)
    feed = feed_of("a", "b", "c")

    assert await seen(feed, 0) == (["b", "c"], 3)


async def test_those_who_wait_can_be_answered_without_news() -> None:
    feed = feed_of("a")
    waiting = asyncio.create_task(seen(feed, 1, 60))
    await asyncio.sleep(0)

    feed.wake()

    assert await asyncio.wait_for(waiting, 10) == ([], 1)
