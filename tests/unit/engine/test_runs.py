from __future__ import annotations

import asyncio
import logging

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chockstone.engine.futures import Futures, Result
from chockstone.engine.lanes import Lane
from chockstone.engine.limits import Busy, Limits
from chockstone.engine.runs import LiveRun, Release, Runs
from chockstone.wire.failures import BadRequest, ServerFailure


def make_runs(**limits: int) -> tuple[Runs, Futures]:
    futures = Futures(now=lambda: 0.0)
    return Runs(futures, Limits(**limits)), futures


def make_live(run_id: str = "r", *, limit: int = 100) -> LiveRun:
    return LiveRun(run_id, "s", "local", "tiny", {"rank": 8}, {"type": "adamw"}, Lane(limit=limit))


async def succeed(_: Release) -> Result:
    return Result(b"done")


async def told(futures: Futures, request_id: str) -> dict[str, str]:
    promise = futures.get(request_id)
    assert promise is not None
    result = await promise.wait(10)
    assert result is not None
    answer: dict[str, str] = orjson.loads(result.body)
    return answer


ENDINGS = st.sampled_from(["well", "user", "server", "bug"])


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(1, 6), ENDINGS, st.booleans()), max_size=15))
def test_each_operation_ends_as_it_does_whatever_became_of_the_others(
    arrivals: list[tuple[int, str, bool]],
) -> None:
    ran: list[int] = []
    first: dict[int, tuple[str, str]] = {}  # seq_id → request id, ending

    async def scenario() -> None:
        runs, futures = make_runs()
        live = make_live()
        for seq_id, ending, releases in arrivals:

            async def act(
                release: Release, seq_id: int = seq_id, ending: str = ending, releases: bool = releases
            ) -> Result:
                ran.append(seq_id)
                if releases:
                    release()
                await asyncio.sleep(0)
                match ending:
                    case "user":
                        raise BadRequest("yours")
                    case "server":
                        raise ServerFailure("ours")
                    case "bug":
                        raise ZeroDivisionError("a bug")
                return Result(b"well")

            request_id = runs.submit(live, seq_id, act, size_bytes=1)
            assert request_id == first.setdefault(seq_id, (request_id, ending))[0]
        await live.lane.drained()
        for request_id, ending in first.values():
            if ending == "well":
                assert (promise := futures.get(request_id)) is not None
                assert promise.result == Result(b"well")
            else:
                assert (await told(futures, request_id))["category"] == ("user" if ending == "user" else "server")
        assert futures.pending() == 0

    logging.disable()
    try:
        asyncio.run(scenario())
    finally:
        logging.disable(logging.NOTSET)

    assert ran == list(first)


async def test_an_unexpected_error_is_told_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    runs, futures = make_runs()

    async def act(_: Release) -> Result:
        raise ZeroDivisionError("a bug")

    answer = await told(futures, runs.submit(make_live(), 1, act))

    assert answer == {"error": "ZeroDivisionError: a bug", "category": "server"}
    assert "operation failed run=r" in caplog.text


async def test_a_run_with_a_problem_fails_what_is_queued_and_what_comes() -> None:
    runs, futures = make_runs()
    live = make_live()
    runs.add(live)
    queued = runs.submit(live, 1, succeed)

    runs.fail_all("the server is shutting down")

    for request_id in (queued, runs.submit(live, 2, succeed)):
        assert await told(futures, request_id) == {"error": "the server is shutting down", "category": "server"}


async def test_a_full_lane_is_busy_and_takes_the_same_number_later() -> None:
    runs, futures = make_runs()
    live = make_live(limit=1)
    first = [runs.submit(live, seq_id, succeed) for seq_id in (1, 2)]

    with pytest.raises(Busy, match="run 'r' has 1 operations waiting"):
        runs.submit(live, 3, succeed)
    assert futures.pending() == 2
    assert [runs.submit(live, seq_id, succeed) for seq_id in (1, 2)] == first

    await live.lane.drained()
    runs.submit(live, 3, succeed)
    await live.lane.drained()


async def test_too_many_bytes_are_busy_until_some_were_worked_off() -> None:
    runs, _ = make_runs(queued_bytes=100)
    live = make_live()
    runs.submit(live, 1, succeed, size_bytes=60)

    with pytest.raises(Busy):
        runs.submit(live, 2, succeed, size_bytes=41)

    runs.submit(live, 3, succeed, size_bytes=40)
    await live.lane.drained()
    runs.submit(live, 2, succeed, size_bytes=100)
    await live.lane.drained()


async def test_what_was_refused_does_not_count_against_the_bytes() -> None:
    runs, _ = make_runs(queued_bytes=100)
    live = make_live(limit=0)

    for seq_id in range(3):
        with pytest.raises(Busy, match="operations waiting"):
            runs.submit(live, seq_id, succeed, size_bytes=100)


async def test_no_more_runs_are_loaded_than_may_be() -> None:
    runs, _ = make_runs(runs=1)
    first = make_live("first")
    runs.add(first)

    with pytest.raises(Busy, match="1 runs are loaded"):
        runs.add(make_live("second"))

    runs.remove(first)
    runs.add(make_live("second"))
    assert [live.run_id for live in runs] == ["second"]


async def test_removing_a_run_leaves_its_successor_of_the_same_id() -> None:
    runs, _ = make_runs()
    first, second = make_live(), make_live()
    runs.add(first)
    runs.remove(first)
    runs.add(second)

    runs.remove(first)

    assert runs.get("r") is second
