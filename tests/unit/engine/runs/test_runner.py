from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, cast

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chockstone.backends.protocol import WorkerLost
from chockstone.engine.background import Shutdown
from chockstone.engine.config import Busy, EngineLimits
from chockstone.engine.crash_suspects import CrashSuspects
from chockstone.engine.futures import Futures, Result
from chockstone.engine.runs.commands import ForwardBackward
from chockstone.engine.runs.executor import Executor, Release
from chockstone.engine.runs.operations import Operation, OperationOutcome
from chockstone.engine.runs.recovery.recovery import NotRecovered
from chockstone.engine.runs.run import Run, RunFacts
from chockstone.engine.runs.run_journal import RunJournal
from chockstone.engine.runs.runner import Runner, Settlement
from chockstone.telemetry.instruments import Instruments
from chockstone.telemetry.timings import RecentTimings
from chockstone.wire.failures import BadRequest, ServerFailure
from support.engine.making import blank_history, no_history

Act = Callable[[Release], Awaitable[Result]]


class Actions(Executor):
    """In place of the commands: each operation carries what it does."""

    def __init__(self) -> None:
        self.acts: dict[int | None, Act] = {}
        self._suspects = CrashSuspects()

    async def _execute(self, run: Run, operation: Operation, release: Release) -> OperationOutcome:
        return OperationOutcome(await self.acts[operation.request.seq_id](release))


class NoRecovery:
    def __init__(self) -> None:
        self.errors: list[Exception] = []

    async def recover(self, run: Run, *, before: Operation | None) -> None:
        if self.errors:
            raise self.errors.pop(0)


class NoArchives:
    def is_due(self, live: Run) -> bool:
        return False

    def is_crowded(self, live: Run) -> bool:
        return False


@dataclass
class Stage:
    limits: EngineLimits = field(default_factory=EngineLimits)
    actions: Actions = field(default_factory=Actions)
    recovery: NoRecovery = field(default_factory=NoRecovery)
    futures: Futures = field(default_factory=lambda: Futures(now=lambda: 0.0))
    lost: list[Run] = field(default_factory=list)
    timings: RecentTimings = field(default_factory=RecentTimings)

    def __post_init__(self) -> None:
        # Any: stand-ins for the rooms next door
        recovery, archives = cast("Any", self.recovery), cast("Any", NoArchives())
        self.runner = Runner(
            self.futures,
            self.limits,
            self.actions,
            recovery,
            archives,
            Settlement(
                self.futures, no_history(), Instruments(), on_settled=lambda *_: None, on_open_failed=self.lost.append
            ),
            Shutdown(),
            Instruments(),
            timings=self.timings,
            on_lost=self.lost.append,
        )

    def live(self, run_id: str = "s:train:0") -> Run:
        facts = RunFacts(run_id, "s", 0, "local", "tiny", {"rank": 8}, {"type": "adamw"})
        return Run(facts, RunJournal(None, None), blank_history(run_id))

    async def submit(self, live: Run, seq_id: int, act: Act, *, size_bytes: int = 1) -> str:
        self.actions.acts.setdefault(seq_id, act)
        return await self.runner.submit(live, seq_id, ForwardBackward(), bytes(size_bytes))

    async def told(self, request_id: str) -> dict[str, str]:
        promise = self.futures.get(request_id)
        assert promise is not None
        result = await promise.wait(10)
        assert result is not None
        answer: dict[str, str] = orjson.loads(result.body)
        return answer


async def succeed(_: Release) -> Result:
    return Result(b"{}")


def die(times: int) -> Act:
    left = times

    async def act(_: Release) -> Result:
        nonlocal left
        left -= 1
        if left >= 0:
            raise WorkerLost("signal 9")
        return Result(b"{}")

    return act


ENDINGS = st.sampled_from(["well", "user", "server", "bug"])


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(1, 6), ENDINGS, st.booleans()), max_size=15))
def test_each_operation_ends_as_it_does_whatever_became_of_the_others(
    arrivals: list[tuple[int, str, bool]],
) -> None:
    ran: list[int] = []
    first: dict[int, tuple[str, str]] = {}  # seq_id → request id, ending

    async def scenario() -> None:
        stage = Stage()
        live = stage.live()
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

            request_id = await stage.submit(live, seq_id, act)
            assert request_id == first.setdefault(seq_id, (request_id, ending))[0]
        await live.lane.drained()
        for request_id, ending in first.values():
            if ending == "well":
                assert (promise := stage.futures.get(request_id)) is not None
                assert promise.result == Result(b"well")
            else:
                assert (await stage.told(request_id))["category"] == ("user" if ending == "user" else "server")
        assert stage.futures.pending() == 0

    logging.disable()
    try:
        asyncio.run(scenario())
    finally:
        logging.disable(logging.NOTSET)

    assert ran == list(first)


async def test_an_unexpected_error_is_told_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    stage = Stage()

    async def act(_: Release) -> Result:
        raise ZeroDivisionError("a bug")

    answer = await stage.told(await stage.submit(stage.live(), 1, act))

    assert answer == {"error": "ZeroDivisionError: a bug", "category": "server"}
    assert "operation failed run=s:train:0" in caplog.text


async def test_a_run_with_a_problem_fails_what_is_queued_and_what_comes() -> None:
    stage = Stage()
    live = stage.live()
    queued = await stage.submit(live, 1, succeed)

    live.lose("the run cannot go on")

    for request_id in (queued, await stage.submit(live, 2, succeed)):
        assert await stage.told(request_id) == {"error": "the run cannot go on", "category": "server"}


async def test_a_run_that_cannot_be_recovered_says_so_to_all_that_it_is_asked() -> None:
    stage = Stage()
    live = stage.live()
    stage.recovery.errors = [NotRecovered("no archive can be read")]

    for seq_id in (1, 2):
        told = await stage.told(await stage.submit(live, seq_id, succeed))
        assert told == {"error": "no archive can be read", "category": "server"}
    assert stage.lost == [live]


async def test_a_full_lane_is_busy_and_takes_the_same_number_later() -> None:
    stage = Stage(EngineLimits(operations_per_run=1))
    live = stage.live()
    first = [await stage.submit(live, seq_id, succeed) for seq_id in (1, 2)]

    with pytest.raises(Busy, match="run 's:train:0' has 1 operations waiting"):
        await stage.submit(live, 3, succeed)
    assert stage.futures.pending() == 2
    assert [await stage.submit(live, seq_id, succeed) for seq_id in (1, 2)] == first

    await live.lane.drained()
    await stage.submit(live, 3, succeed)
    await live.lane.drained()


async def test_too_many_bytes_are_busy_until_some_were_worked_off() -> None:
    stage = Stage(EngineLimits(queued_bytes=100))
    live = stage.live()
    await stage.submit(live, 1, succeed, size_bytes=60)

    with pytest.raises(Busy):
        await stage.submit(live, 2, succeed, size_bytes=16)

    await stage.submit(live, 3, succeed, size_bytes=15)
    await stage.submit(live, 4, succeed, size_bytes=0)
    await live.lane.drained()
    await stage.submit(live, 2, succeed, size_bytes=100)
    await live.lane.drained()


async def test_what_was_refused_does_not_count_against_the_bytes() -> None:
    stage = Stage(EngineLimits(queued_bytes=100, operations_per_run=0))
    live = stage.live()

    for seq_id in range(3):
        with pytest.raises(Busy, match="operations waiting"):
            await stage.submit(live, seq_id, succeed, size_bytes=100)


async def test_what_the_worker_died_of_is_tried_again_and_failed_by_name_in_the_end() -> None:
    stage = Stage(EngineLimits(deaths=3))
    live = stage.live()
    unlucky = await stage.submit(live, 1, die(2))
    poisoned = await stage.submit(live, 2, die(3))
    after = await stage.submit(live, 3, succeed)

    assert await stage.told(unlucky) == {}
    told = await stage.told(poisoned)
    assert told["category"] == "server"
    assert "pass killed the worker 3 times, so it is not tried again: signal 9" in told["error"]
    assert await stage.told(after) == {}


async def test_after_its_first_death_an_operation_runs_while_no_other_suspect_does() -> None:
    stage = Stage()
    running, most = [0, 0], [0, 0]  # first attempts, and later ones

    def suspect() -> Act:
        attempts = 0

        async def act(_: Release) -> Result:
            nonlocal attempts
            attempts += 1
            is_suspect = attempts > 1
            running[is_suspect] += 1
            most[is_suspect] = max(most[is_suspect], running[is_suspect])
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            running[is_suspect] -= 1
            if attempts < 3:
                raise WorkerLost("signal 9")
            return Result(b"{}")

        return act

    lives = [stage.live(f"s:train:{number}") for number in range(3)]
    requests = [await stage.submit(live, 10 + number, suspect()) for number, live in enumerate(lives)]

    assert [await stage.told(request_id) for request_id in requests] == [{}] * 3
    assert most == [3, 1]


async def test_a_run_that_the_worker_dies_of_when_it_is_recovered_is_lost_for_this_server() -> None:
    stage = Stage()
    stage.recovery.errors = [WorkerLost("signal 9")] * 9

    assert await stage.told(await stage.submit(stage.live(), 1, succeed)) == {}

    stage.recovery.errors = [WorkerLost("signal 9")] * 10
    told = await stage.told(await stage.submit(stage.live(), 2, succeed))
    assert "could not be recovered in 10 attempts: signal 9" in told["error"]
    assert not stage.lost, "another server may have more luck"
