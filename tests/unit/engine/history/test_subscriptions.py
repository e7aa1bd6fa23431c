from __future__ import annotations

import asyncio

from chockstone.engine.history.points import HistoryPoint
from chockstone.engine.history.subscriptions import RunPoints, Subscriptions


def point(position: int) -> HistoryPoint:
    return HistoryPoint(position, position, 1.0, position, "server", {"loss": 1.0})


async def test_points_reach_the_subscribers_of_their_run_and_of_all_runs() -> None:
    subscriptions = Subscriptions()
    with subscriptions.open("a") as of_a, subscriptions.open("b") as of_b, subscriptions.open(None) as of_all:
        subscriptions.publish("a", [point(1)])
        subscriptions.publish("a", [point(2)])
        subscriptions.publish("b", [point(1)])

        assert await anext(of_a) == RunPoints("a", (point(1), point(2)))
        assert await anext(of_b) == RunPoints("b", (point(1),))
        assert await anext(of_all) == RunPoints("a", (point(1), point(2)))
        assert await anext(of_all) == RunPoints("b", (point(1),))


async def test_a_subscriber_waits_for_points() -> None:
    subscriptions = Subscriptions()
    with subscriptions.open("a") as subscription:
        waiting = asyncio.ensure_future(anext(subscription))
        await asyncio.sleep(0)
        subscriptions.publish("a", [point(1)])

        assert await waiting == RunPoints("a", (point(1),))
        assert await subscription.next(timeout_seconds=0) is None
        assert not subscription.has_ended


async def test_a_reader_that_falls_behind_is_dropped() -> None:
    subscriptions = Subscriptions()
    with subscriptions.open("a", max_waiting=3) as slow, subscriptions.open("a") as quick:
        for position in range(1, 6):
            subscriptions.publish("a", [point(position)])

        assert [each async for each in slow] == []
        assert slow.has_fallen_behind and slow.has_ended
        assert len((await anext(quick)).points) == 5
        assert not quick.has_fallen_behind


async def test_a_reader_that_keeps_up_is_not_dropped() -> None:
    subscriptions = Subscriptions()
    with subscriptions.open("a", max_waiting=2) as subscription:
        for position in range(1, 20):
            subscriptions.publish("a", [point(position)])
            assert (await anext(subscription)).points == (point(position),)


async def test_what_waits_is_read_before_the_end() -> None:
    subscriptions = Subscriptions()
    with subscriptions.open("a") as of_a, subscriptions.open(None) as of_all:
        subscriptions.publish("a", [point(1)])
        subscriptions.end("a")

        assert [each async for each in of_a] == [RunPoints("a", (point(1),))]
        assert of_a.has_ended and not of_a.has_fallen_behind
        subscriptions.end_all()
        assert [each async for each in of_all] == [RunPoints("a", (point(1),))]


async def test_an_end_wakes_the_one_who_waits() -> None:
    subscriptions = Subscriptions()
    with subscriptions.open("a") as subscription:
        waiting = asyncio.ensure_future(subscription.next(timeout_seconds=60))
        await asyncio.sleep(0)
        subscriptions.end_all()

        assert await waiting is None
        assert subscription.has_ended


async def test_a_closed_subscription_leaves_nothing_behind() -> None:
    subscriptions = Subscriptions()
    with subscriptions.open("a") as one, subscriptions.open("a"):
        one.close()
        subscriptions.publish("a", [point(1)])
        assert [each async for each in one] == []

    assert not subscriptions._by_run
