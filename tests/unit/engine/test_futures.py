from __future__ import annotations

import asyncio

import pytest

from chockstone.engine.futures import GRACE_SECONDS, OVERHEAD_BYTES, Futures, Promise, Result
from chockstone.wire.failures import BadRequest


class Clock:
    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def futures(clock: Clock) -> Futures:
    return Futures(now=clock)


def settled(futures: Futures, body: bytes = b"x") -> Promise:
    promise = futures.promise("local")
    futures.settle(promise, Result(body))
    return promise


def delivered(futures: Futures) -> Promise:
    promise = settled(futures)
    futures.delivered(promise)
    return promise


def is_there(futures: Futures, promise: Promise) -> bool:
    return futures.get(promise.request_id) is promise


async def test_a_result_that_is_there_is_told_at_once(futures: Futures) -> None:
    assert await settled(futures, b"body").wait(0) == Result(b"body")


async def test_a_wait_ends_without_a_result_when_time_is_up(futures: Futures) -> None:
    assert await futures.promise("local").wait(0.001) is None


async def test_all_who_wait_are_told_as_soon_as_there_is_a_result(futures: Futures) -> None:
    promise = futures.promise("local")
    waiters = [asyncio.create_task(promise.wait(60)) for _ in range(2)]
    await asyncio.sleep(0)

    futures.settle(promise, Result(b"body", "pass"))

    assert await asyncio.gather(*waiters) == [Result(b"body", "pass")] * 2


async def test_one_who_stops_waiting_leaves_the_others_waiting(futures: Futures) -> None:
    promise = futures.promise("local")
    patient = asyncio.create_task(promise.wait(60))
    gone = asyncio.create_task(promise.wait(60))
    await asyncio.sleep(0)

    gone.cancel()
    await asyncio.gather(gone, return_exceptions=True)
    futures.settle(promise, Result(b"body"))

    assert await patient == Result(b"body")


async def test_the_first_result_stands(futures: Futures) -> None:
    promise = settled(futures, b"first")

    futures.settle(promise, Result(b"second"))

    assert await promise.wait(0) == Result(b"first")


def test_a_failure_says_what_happened_and_whose_fault_it_was() -> None:
    result = Result.failed(BadRequest("no such loss"))

    assert result == Result(b'{"error":"no such loss","category":"user"}', "json", is_failure=True)


def test_an_unexpected_error_is_the_servers_fault() -> None:
    assert Result.failed(KeyError("x")).body == b'{"error":"KeyError: \'x\'","category":"server"}'


def test_a_result_is_kept_for_a_grace_period_after_it_was_delivered(futures: Futures, clock: Clock) -> None:
    promise = delivered(futures)

    clock.seconds += GRACE_SECONDS - 1
    settled(futures)
    assert is_there(futures, promise)

    clock.seconds += 1
    settled(futures)
    assert not is_there(futures, promise)


def test_a_result_that_nobody_fetched_outlives_the_grace_period(futures: Futures, clock: Clock) -> None:
    promise = settled(futures)

    clock.seconds += 10 * GRACE_SECONDS
    settled(futures)

    assert is_there(futures, promise)


def test_a_result_that_nobody_fetched_does_not_keep_delivered_ones(futures: Futures, clock: Clock) -> None:
    abandoned = settled(futures)
    promise = delivered(futures)

    clock.seconds += GRACE_SECONDS
    settled(futures)

    assert is_there(futures, abandoned)
    assert not is_there(futures, promise)


def test_a_result_delivered_again_has_its_grace_period_anew(futures: Futures, clock: Clock) -> None:
    promise, other = delivered(futures), delivered(futures)

    clock.seconds += GRACE_SECONDS - 1
    futures.delivered(promise)
    clock.seconds += 1
    settled(futures)

    assert is_there(futures, promise)
    assert not is_there(futures, other)


def test_the_oldest_results_make_room_for_newer_ones(clock: Clock) -> None:
    futures = Futures(now=clock, limit_bytes=3 * (OVERHEAD_BYTES + 100))
    promises = [settled(futures, bytes(100)) for _ in range(4)]

    assert [is_there(futures, promise) for promise in promises] == [False, True, True, True]

    large = settled(futures, bytes(OVERHEAD_BYTES + 200))
    assert [is_there(futures, promise) for promise in promises] == [False, False, False, True]
    assert is_there(futures, large)


async def test_a_result_larger_than_the_limit_is_kept_until_the_next_one(clock: Clock) -> None:
    futures = Futures(now=clock, limit_bytes=100)
    large = settled(futures, bytes(10_000))

    assert is_there(futures, large)
    settled(futures)
    assert not is_there(futures, large)


async def test_results_that_are_still_to_come_are_never_dropped(clock: Clock) -> None:
    futures = Futures(now=clock, limit_bytes=0)
    pending = futures.promise("local")
    for _ in range(3):
        settled(futures)

    assert is_there(futures, pending)
    assert futures.pending() == 1


async def test_one_who_waits_gets_a_result_that_is_not_kept(clock: Clock) -> None:
    futures = Futures(now=clock, limit_bytes=0)
    promise = futures.promise("local")
    waiter = asyncio.create_task(promise.wait(60))
    await asyncio.sleep(0)

    futures.settle(promise, Result(b"body"))
    settled(futures)

    assert await waiter == Result(b"body")


def test_a_forgotten_result_is_gone_and_its_memory_free(clock: Clock) -> None:
    futures = Futures(now=clock, limit_bytes=2 * (OVERHEAD_BYTES + 100))
    first, second = settled(futures, bytes(100)), settled(futures, bytes(100))

    futures.forget(first.request_id)
    futures.forget(first.request_id)
    third = settled(futures, bytes(100))

    assert [is_there(futures, promise) for promise in (first, second, third)] == [False, True, True]


def test_what_is_still_to_come_cannot_be_forgotten(futures: Futures) -> None:
    promise = futures.promise("local")

    futures.forget(promise.request_id)

    assert is_there(futures, promise)


def test_delivery_of_what_was_forgotten_meanwhile_changes_nothing(futures: Futures, clock: Clock) -> None:
    promise = settled(futures)
    futures.forget(promise.request_id)

    futures.delivered(promise)
    clock.seconds += 2 * GRACE_SECONDS
    settled(futures)

    assert not is_there(futures, promise)


def test_ids_are_known_by_their_form_even_to_another_server(futures: Futures, clock: Clock) -> None:
    earlier = Futures(now=clock).promise("local").request_id

    assert futures.get(earlier) is None
    assert futures.was_ours(earlier)
    assert futures.was_ours(futures.promise("local").request_id)
    for derived in ("s:train:0:0", "s:sample:3:12", "s:loss:1"):
        assert futures.was_ours(derived)
    for stranger in (
        "",
        "-",
        "--",
        "a-b",
        "1-2-3-4",
        "g-1-2",
        "A-1-2",
        "s:train:0",
        "s:sample:0",
        "s:other:0:1",
        f"{earlier} ",
    ):
        assert not futures.was_ours(stranger)


def test_no_two_requests_share_an_id(futures: Futures) -> None:
    assert len({futures.promise("local").request_id for _ in range(1000)}) == 1000


async def test_a_server_that_ends_waits_until_its_results_were_fetched(futures: Futures) -> None:
    promise = settled(futures)
    collecting = asyncio.create_task(futures.collected(60))
    await asyncio.sleep(0)
    assert not collecting.done()

    futures.delivered(promise)

    await asyncio.wait_for(collecting, 5)


async def test_a_server_that_ends_waits_only_so_long() -> None:
    ticks = iter(range(100))
    futures = Futures(now=lambda: float(next(ticks)))
    settled(futures)

    await asyncio.wait_for(futures.collected(0.5), 5)


async def test_a_disowned_result_is_not_kept(futures: Futures) -> None:
    pending, done = futures.promise("local"), settled(futures)

    futures.disown(pending.request_id)
    futures.disown(done.request_id)
    futures.disown("never heard of")
    futures.settle(pending, Result(b"late"))

    assert not is_there(futures, pending)
    assert not is_there(futures, done)
    assert futures.pending() == 0
    await asyncio.wait_for(futures.collected(60), 5)
