from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from chockstone.sampling.vllm import gap_checks
from chockstone.sampling.vllm.gap_checks import GapChecks
from chockstone.wire.sampler_gap import SamplerGap

LIMIT = 0.1


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def checks(clock: Clock) -> GapChecks:
    return GapChecks(limit=LIMIT, monotonic=clock)


def gap(mean: float | None = 0.01) -> SamplerGap:
    trouble = "it failed" if mean is None else None
    return SamplerGap(server="http://vllm", base_model="m", archive="a", mean=mean, largest=mean, trouble=trouble)


def finding(mean: float | None = 0.01) -> Callable[[], Awaitable[SamplerGap]]:
    async def measure() -> SamplerGap:
        return gap(mean)

    return measure


class Gated:
    """A measurement that ends when the gate is open."""

    def __init__(self, mean: float) -> None:
        self._mean = mean
        self.has_begun, self.gate = asyncio.Event(), asyncio.Event()

    async def __call__(self) -> SamplerGap:
        self.has_begun.set()
        await self.gate.wait()
        return gap(self._mean)


async def never() -> SamplerGap:
    raise AssertionError("it is known")


async def test_a_gap_is_measured_once_for_all_that_ask_at_once(checks: GapChecks) -> None:
    measured = 0

    async def measure() -> SamplerGap:
        nonlocal measured
        measured += 1
        await asyncio.sleep(0.01)
        return gap()

    waited = await asyncio.gather(*(checks.measure_once("m", "a", measure) for _ in range(5)))

    assert waited == [True] * 5
    assert measured == 1
    assert await checks.measure_once("m", "a", never) is False
    assert checks.may_serve("m", "a")


@pytest.mark.parametrize(("mean", "may_serve"), [(LIMIT, True), (0.11, False), (None, False)])
async def test_a_server_serves_within_the_limit_only(checks: GapChecks, mean: float | None, may_serve: bool) -> None:
    assert checks.may_serve("m", "a"), "what is not known is measured first"

    await checks.measure_once("m", "a", finding(mean))

    assert checks.may_serve("m", "a") == may_serve
    assert checks.exceeding() == ([] if may_serve else [gap(mean)])
    assert checks.may_serve("m", "b") and checks.may_serve("m", None)


async def test_a_probe_that_failed_is_repeated_later_and_a_gap_is_not(checks: GapChecks, clock: Clock) -> None:
    await checks.measure_once("m", "failed", finding(None))
    await checks.measure_once("m", "large", finding(0.5))
    clock.now = 59.0
    checks.repeat_failed("m", "failed", never)
    repeated = Gated(0.01)

    clock.now = 60.0
    for name in ("failed", "large", "unknown"):
        checks.repeat_failed("m", name, repeated)
        checks.repeat_failed("m", name, never)
    await repeated.has_begun.wait()

    assert not checks.may_serve("m", "failed"), "samples do not wait"
    assert await checks.measure_once("m", "failed", never) is False
    repeated.gate.set()
    assert await checks.measure("m", "failed", never) == gap(0.01), "it is joined"
    assert checks.may_serve("m", "failed") and not checks.may_serve("m", "large")


async def test_a_repeated_probe_that_raises_is_logged_and_repeated_a_minute_later(
    checks: GapChecks, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    async def lose() -> SamplerGap:
        raise ConnectionError("lost")

    await checks.measure_once("m", "a", finding(None))
    clock.now = 60.0
    checks.repeat_failed("m", "a", lose)
    async with asyncio.timeout(10):
        while "sampler gap not measured again error=lost" not in caplog.text:
            await asyncio.sleep(0)

    checks.repeat_failed("m", "a", never)
    assert not checks.may_serve("m", "a")
    clock.now = 120.0
    repeated = Gated(0.01)
    checks.repeat_failed("m", "a", repeated)
    await repeated.has_begun.wait()
    await checks.close()


async def test_what_the_measuring_raises_reaches_all_who_wait_and_is_tried_again(checks: GapChecks) -> None:
    async def measure() -> SamplerGap:
        await asyncio.sleep(0.01)
        raise ConnectionError("lost")

    raised = await asyncio.gather(*(checks.measure_once("m", "a", measure) for _ in range(2)), return_exceptions=True)

    assert [type(each) for each in raised] == [ConnectionError] * 2
    assert checks.may_serve("m", "a") and checks.exceeding() == []
    assert await checks.measure_once("m", "a", finding())


async def test_who_is_cancelled_leaves_the_measuring_to_the_others(checks: GapChecks) -> None:
    gate = asyncio.Event()

    async def measure() -> SamplerGap:
        await gate.wait()
        return gap()

    leaving, staying = [asyncio.create_task(checks.measure_once("m", "a", measure)) for _ in range(2)]
    await asyncio.sleep(0)
    leaving.cancel()
    gate.set()

    assert await staying is True


async def test_a_measurement_that_is_asked_for_replaces_what_was_known(checks: GapChecks) -> None:
    await checks.measure_once("m", "a", finding(0.5))

    assert await checks.measure("m", "a", finding(0.01)) == gap(0.01)

    assert checks.may_serve("m", "a")


@pytest.mark.parametrize(("known", "found", "may_serve"), [(0.5, 0.01, False), (0.01, 0.5, True)])
async def test_what_was_known_holds_until_the_measurement_has_ended(
    checks: GapChecks, known: float, found: float, may_serve: bool
) -> None:
    await checks.measure_once("m", "a", finding(known))
    measure = Gated(found)
    measuring = asyncio.create_task(checks.measure("m", "a", measure))
    await measure.has_begun.wait()

    assert checks.may_serve("m", "a") == may_serve
    assert await checks.measure_once("m", "a", never) is False, "samples do not wait"
    assert checks.exceeding() == ([] if may_serve else [gap(known)])
    measure.gate.set()
    await measuring
    assert checks.may_serve("m", "a") != may_serve


async def test_a_measurement_that_raises_leaves_what_was_known(checks: GapChecks) -> None:
    async def lose() -> SamplerGap:
        raise ConnectionError("lost")

    await checks.measure_once("m", "a", finding(0.5))
    with pytest.raises(ConnectionError):
        await checks.measure("m", "a", lose)

    assert not checks.may_serve("m", "a") and checks.exceeding() == [gap(0.5)]
    assert await checks.measure_once("m", "a", never) is False


async def test_what_a_lost_server_was_measuring_is_not_believed(checks: GapChecks) -> None:
    measure = Gated(0.5)
    measuring = asyncio.create_task(checks.measure("m", "a", measure))
    await measure.has_begun.wait()
    checks.forget_all()
    measure.gate.set()
    await measuring

    assert checks.may_serve("m", "a")
    assert await checks.measure_once("m", "a", finding())


async def test_gaps_of_weights_that_no_sample_asks_for_are_not_reported(checks: GapChecks, clock: Clock) -> None:
    await checks.measure("m", "unused", finding(0.5))
    await checks.measure_once("m", "used", finding(0.6))
    clock.now = 3000.0
    checks.may_serve("m", "used")
    clock.now = 4000.0
    assert checks.exceeding() == [gap(0.6)]

    clock.now = 7000.0

    assert checks.exceeding() == []


async def test_a_lost_server_is_measured_again(checks: GapChecks) -> None:
    await checks.measure_once("m", None, finding(0.5))
    await checks.measure_once("m", "a", finding(0.5))

    checks.forget("a")
    assert checks.may_serve("m", "a") and not checks.may_serve("m", None)
    checks.forget_all()
    assert checks.may_serve("m", None)


async def test_without_a_limit_nothing_is_measured_until_it_is_asked_for() -> None:
    checks = GapChecks(limit=None)

    assert await checks.measure_once("m", "a", never) is False
    assert await checks.measure("m", "a", finding(9.0)) == gap(9.0)
    assert checks.may_serve("m", "a") and checks.exceeding() == []


async def test_the_number_of_known_gaps_is_bounded(monkeypatch: pytest.MonkeyPatch, checks: GapChecks) -> None:
    monkeypatch.setattr(gap_checks, "_KEPT", 2)
    for name in ("a", "b"):
        await checks.measure_once("m", name, finding())
    checks.may_serve("m", "a")
    await checks.measure_once("m", "c", finding())

    assert await checks.measure_once("m", "a", never) is False
    assert await checks.measure_once("m", "b", finding()) is True


async def test_closing_ends_what_is_being_measured(checks: GapChecks) -> None:
    async def measure() -> SamplerGap:
        await asyncio.Event().wait()
        return gap()

    waiting = asyncio.create_task(checks.measure_once("m", "a", measure))
    await asyncio.sleep(0)

    await checks.close()

    with pytest.raises(asyncio.CancelledError):
        await waiting
