"""A fleet that measures the gap of weights before it samples from them."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from chockstone.sampling.vllm import gap_checks
from chockstone.sampling.vllm.fleet import _MEASURE_SECONDS, Fleet
from chockstone.sampling.vllm.gap_probe import NotScored
from chockstone.wire.codecs.samples import SampleResult
from chockstone.wire.failures import ServerFailure
from support.vllm.making import Exact, adapter, fleet, request, until
from support.vllm.stub import MODEL, Stub, running

LIMIT = 0.1
OF_PROBE = 4  # requests


def limits_of_probes(monkeypatch: pytest.MonkeyPatch) -> list[asyncio.Timeout]:
    """Collects the time limits of probes, which a test lets expire."""
    limits: list[asyncio.Timeout] = []
    timeout = asyncio.timeout

    def collect(seconds: float | None) -> asyncio.Timeout:
        made = timeout(seconds)
        if seconds == _MEASURE_SECONDS:
            limits.append(made)
        return made

    monkeypatch.setattr(asyncio, "timeout", collect)
    return limits


def expire(limit: asyncio.Timeout) -> None:
    limit.reschedule(asyncio.get_running_loop().time())


async def ask(servers: Fleet, exact: Exact, number: int | None = None, **fields: Any) -> SampleResult | None:
    files = None if number is None else adapter(number)
    return await servers.sample(request(**fields), MODEL, files, seed=0, exact=exact.path)


async def test_weights_are_probed_once_before_the_first_sample(stub: Stub, caplog: pytest.LogCaptureFixture) -> None:
    exact, of_base = Exact(1), Exact()
    with caplog.at_level(logging.INFO, "chockstone"):
        async with fleet(stub, gap_limit=LIMIT) as servers:
            results = await asyncio.gather(*(ask(servers, exact, 1) for _ in range(3)))
            results += [await ask(servers, exact, 1), await ask(servers, of_base)]

    assert all(result is not None for result in results)
    assert (exact.scored, of_base.scored) == (1, 1)
    assert len(stub.requests) == 2 * OF_PROBE + 5
    assert {body["max_tokens"] for body in stub.requests[:OF_PROBE]} == {32}
    [gap], [base_gap] = exact.reported, of_base.reported
    assert (gap.server, gap.base_model, gap.archive, gap.tokens) == (stub.url, MODEL, "chockstone-1", 128)
    assert gap.mean is not None and gap.largest is not None and 0 <= gap.mean <= gap.largest < 1e-6
    assert base_gap.archive is None
    assert f"sampler gap measured server={stub.url} weights=chockstone-1 mean=" in caplog.text


async def test_weights_above_the_limit_are_not_vllms(stub: Stub, caplog: pytest.LogCaptureFixture) -> None:
    exact, stub.gap = Exact(1), 0.25
    async with fleet(stub, gap_limit=LIMIT) as servers:
        results = [await ask(servers, exact, 1) for _ in range(3)]
        exceeding = servers.exceeding_gaps()

    assert results == [None] * 3
    assert len(stub.requests) == OF_PROBE
    assert exceeding == exact.reported
    assert exceeding[0].mean == pytest.approx(0.25, abs=1e-6) and exceeding[0].largest == pytest.approx(0.25, abs=1e-6)
    assert "sampler gap above the limit" in caplog.text and "mean=0.25 largest=0.25 limit=0.1" in caplog.text


async def test_other_weights_do_not_wait_for_a_probe(stub: Stub) -> None:
    slow, quick = Exact(1), Exact(2)
    slow.gate.clear()
    async with fleet(stub, gap_limit=LIMIT) as servers:
        waiting = asyncio.create_task(ask(servers, slow, 1))
        await until(lambda: slow.scored)

        assert await ask(servers, quick, 2) is not None

        assert not waiting.done()
        slow.gate.set()
        assert await waiting is not None


async def test_a_server_within_the_limit_has_the_samples_of_one_above_it(stub: Stub, other: Stub) -> None:
    exact, stub.gap = Exact(1), 0.5
    async with fleet(stub, other, gap_limit=LIMIT) as servers:
        results = [await ask(servers, exact, 1, max_tokens=5) for _ in range(4)]

    assert all(result is not None for result in results)
    assert {gap.server: gap.is_within(LIMIT) for gap in exact.reported} == {stub.url: False, other.url: True}
    assert [len([body for body in each.requests if body["max_tokens"] == 5]) for each in (stub, other)] == [0, 4]


async def test_samples_that_waited_for_a_probe_are_spread_over_the_servers(stub: Stub, other: Stub) -> None:
    exact = Exact(1)
    async with fleet(stub, other, gap_limit=LIMIT) as servers:
        results = await asyncio.gather(*(ask(servers, exact, 1, max_tokens=5, samples=2) for _ in range(8)))

    assert all(result is not None for result in results)
    counts = [len([body for body in each.requests if body["max_tokens"] == 5]) for each in (stub, other)]
    assert sum(counts) == 8 and min(counts) >= 2


@pytest.mark.parametrize(
    ("nonsense", "trouble"),
    [
        ({"logprobs": {"token_logprobs": ["nan"] * 32, "top_logprobs": []}}, "not a finite number"),
        ({"logprobs": {"token_logprobs": [7.5] * 32, "top_logprobs": []}}, "no log-probabilities"),
        ({"logprobs": {"token_logprobs": ["-inf"] * 32, "top_logprobs": []}}, "not a finite number"),
        ({"logprobs": {"token_logprobs": [-1e300] * 32, "top_logprobs": []}}, "not a finite number"),
        ({"logprobs": {"token_logprobs": [None] * 32, "top_logprobs": []}}, "TypeError"),
        ({"logprobs": {"token_logprobs": [-1.0] * 31, "top_logprobs": []}}, "32 tokens and 31 logprobs"),
        ({"logprobs": {"token_logprobs": [-1.0], "top_logprobs": []}, "token_ids": [1]}, "1 tokens, where 32"),
        ({"token_ids": [50] * 32}, "a token that the model does not have"),
        ({"logprobs": None}, "TypeError"),
    ],
)
async def test_answers_that_cannot_be_compared_leave_the_samples_to_the_worker(
    stub: Stub, nonsense: dict[str, Any], trouble: str, caplog: pytest.LogCaptureFixture
) -> None:
    exact, stub.nonsense = Exact(1), nonsense
    async with fleet(stub, gap_limit=LIMIT) as servers:
        assert await ask(servers, exact, 1) is None

    assert trouble in str(exact.reported[0].trouble) and exact.reported[0].mean is None
    assert "sampler gap not measured" in caplog.text


async def test_a_probe_that_the_server_refuses_leaves_the_samples_to_the_worker(stub: Stub) -> None:
    exact, stub.fails, stub.failure = Exact(1), 4, 400
    async with fleet(stub, gap_limit=LIMIT) as servers:
        assert await ask(servers, exact, 1) is None

    assert "vLLM does not take the probe" in str(exact.reported[0].trouble)


async def test_a_probe_that_takes_too_long_leaves_the_samples_to_the_worker(
    stub: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    exact, limits = Exact(1), limits_of_probes(monkeypatch)
    stub.gate.clear()
    async with fleet(stub, gap_limit=LIMIT) as servers:
        asking = asyncio.create_task(ask(servers, exact, 1))
        await until(lambda: len(stub.requests) == OF_PROBE)
        expire(limits[0])
        assert await asking is None

        assert "the probe took longer than" in str(exact.reported[0].trouble)
        await until(lambda: stub.aborted == OF_PROBE)


async def test_samples_do_not_wait_for_a_probe_that_is_repeated(stub: Stub, monkeypatch: pytest.MonkeyPatch) -> None:
    exact, limits = Exact(1), limits_of_probes(monkeypatch)
    monkeypatch.setattr(gap_checks, "_RETRY_SECONDS", 0.0)
    stub.gate.clear()
    async with fleet(stub, gap_limit=LIMIT) as servers:
        first = asyncio.create_task(ask(servers, exact, 1))
        await until(lambda: len(stub.requests) == OF_PROBE)
        expire(limits[0])
        assert await first is None

        assert [await ask(servers, exact, 1) for _ in range(3)] == [None] * 3
        await until(lambda: len(stub.requests) == 2 * OF_PROBE)
        stub.gate.set()
        await until(lambda: len(exact.reported) == 2)

        assert await ask(servers, exact, 1) is not None
    assert exact.scored == 1


async def test_samples_do_not_wait_for_a_gap_that_is_measured_on_demand(stub: Stub) -> None:
    exact, checked = Exact(1), Exact(1)
    async with fleet(stub, gap_limit=LIMIT) as servers:
        assert await ask(servers, exact, 1) is not None
        stub.gap = 0.5
        checked.gate.clear()
        checking = asyncio.create_task(servers.measure_gaps(MODEL, adapter(1), checked.path))
        await until(lambda: checked.scored)

        assert await ask(servers, exact, 1) is not None

        checked.gate.set()
        assert [gap.is_within(LIMIT) for gap in await checking] == [False]
        assert await ask(servers, exact, 1) is None


async def test_a_lost_server_is_not_waited_for_while_the_other_is_above_the_limit(stub: Stub, other: Stub) -> None:
    exact, stub.gap = Exact(1), 0.5
    async with fleet(stub, other, gap_limit=LIMIT) as servers:
        await other.die()

        assert await ask(servers, exact, 1) is None

    assert [gap.server for gap in exact.reported] == [stub.url]


async def test_weights_that_the_worker_cannot_score_are_the_workers_to_refuse(stub: Stub) -> None:
    exact = Exact(1)
    exact.failure = NotScored("out of memory")
    async with fleet(stub, gap_limit=LIMIT) as servers:
        assert await ask(servers, exact, 1) is None

    assert exact.reported[0].trouble == "out of memory"


async def test_a_failure_of_the_worker_itself_is_the_samples_and_the_next_one_measures_again(stub: Stub) -> None:
    exact = Exact(1)
    exact.failure = ServerFailure("the worker died")
    async with fleet(stub, gap_limit=LIMIT) as servers:
        with pytest.raises(ServerFailure, match="the worker died"):
            await ask(servers, exact, 1)
        exact.failure = None

        assert await ask(servers, exact, 1) is not None

    assert len(exact.reported) == 1


async def test_a_server_that_dies_during_the_probe_is_probed_when_it_is_back(stub: Stub) -> None:
    exact = Exact(1)
    stub.gate.clear()
    async with fleet(stub, gap_limit=LIMIT) as servers:
        asking = asyncio.create_task(ask(servers, exact, 1))
        await until(lambda: len(stub.requests) == OF_PROBE)
        await stub.die()
        stub.gate.set()
        stub.gap = 0.5
        await stub.start()

        assert await asking is None

    assert exact.reported[0].mean == pytest.approx(0.5, abs=1e-6)


async def test_a_server_that_came_back_is_measured_again(stub: Stub, caplog: pytest.LogCaptureFixture) -> None:
    exact = Exact(1)
    async with fleet(stub, gap_limit=LIMIT) as servers:
        assert await ask(servers, exact, 1) is not None
        await stub.die()
        stub.gap = 0.5
        await until(lambda: "vllm server not used" in caplog.text)
        asking = asyncio.create_task(ask(servers, exact, 1))
        await asyncio.sleep(0)  # it runs until it waits for a server
        assert not asking.done() and servers.exceeding_gaps() == []
        await stub.start()

        assert await asking is None

    assert [gap.is_within(LIMIT) for gap in exact.reported] == [True, False]


async def test_an_adapter_that_a_server_has_lost_is_measured_again(stub: Stub) -> None:
    exact = Exact(1)
    async with fleet(stub, gap_limit=LIMIT) as servers:
        assert await ask(servers, exact, 1) is not None
        stub.adapters.clear()  # a restart that no health check saw

        assert await ask(servers, exact, 1) is not None

    assert len(exact.reported) == 2


async def test_an_adapter_that_no_server_loads_fails_the_sample_as_ever(stub: Stub) -> None:
    exact = Exact(1)
    async with fleet(stub, gap_limit=LIMIT) as servers:
        stub.refuses_adapters = True
        with pytest.raises(ServerFailure, match="rank 64 is greater"):
            await ask(servers, exact, 1)

    assert exact.reported == []


async def test_gaps_are_measured_on_demand_on_each_server(stub: Stub, other: Stub) -> None:
    exact, other.gap = Exact(1), 0.2
    away = Stub()
    await away.start()
    await away.die()
    async with fleet(stub, other, away, gap_limit=None) as servers:
        assert await ask(servers, exact, 1) is not None
        assert exact.scored == 0, "nothing is measured without a limit"

        found = await servers.measure_gaps(MODEL, adapter(1), exact.path)

    assert [gap.server for gap in found] == [stub.url, other.url, away.url]
    assert [gap.mean for gap in found[:2]] == [pytest.approx(0, abs=1e-6), pytest.approx(0.2, abs=1e-6)]
    assert found[2].mean is None and "the server is not used" in str(found[2].trouble)
    assert exact.reported == found[:2] or exact.reported == found[1::-1]


async def test_an_adapter_of_the_output_layer_is_not_measured_where_it_is_ignored() -> None:
    exact, headless = Exact(1), Stub()
    async with running(headless), fleet(headless, gap_limit=LIMIT) as servers:
        [gap] = await servers.measure_gaps(MODEL, adapter(1, has_head=True), exact.path)

    assert "does not apply adapters to the output layer" in str(gap.trouble)


async def test_forgotten_weights_are_measured_again(stub: Stub) -> None:
    exact = Exact(1)
    async with fleet(stub, gap_limit=LIMIT) as servers:
        await ask(servers, exact, 1)
        servers.forget_gaps("chockstone-1")
        await ask(servers, exact, 1)

    assert len(exact.reported) == 2
