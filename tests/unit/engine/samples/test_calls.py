"""What becomes of a sample whose worker dies."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from chockstone.backends.protocol import WorkerLost
from chockstone.checkpoints import Store
from chockstone.engine.config import EngineLimits
from chockstone.engine.crash_suspects import CrashSuspects
from chockstone.engine.samples.sampling import SamplerSource
from chockstone.wire.failures import BadRequest, ServerFailure
from support.engine.fake_backend import FakeBackend
from support.engine.making import settle_down, until
from support.engine.sampling_lives import SOURCE, Life, life


@pytest.fixture
def suspects() -> CrashSuspects:
    return CrashSuspects()


@pytest.fixture
async def server(tmp_path: Path, store: Store, suspects: CrashSuspects) -> AsyncIterator[Life]:
    backend = FakeBackend(store)
    async with life(tmp_path / "samples", backend, suspects=suspects) as server:
        yield server
        backend.let_everything_go()


async def until_called(server: Life, times: int) -> None:
    await until(lambda: len(server.backend.values_of("sample")) == times)


async def die_while_sampling(server: Life, *, calls: int, reason: str = "signal 9") -> None:
    """Once so many calls in all have reached the worker."""
    await until_called(server, calls)
    server.backend.die(reason)


async def test_a_sample_whose_worker_died_is_run_again_with_the_same_seed(server: Life) -> None:
    server.backend.hold("sample")
    submitted = await server.submit(3)
    await die_while_sampling(server, calls=1)

    assert (await server.result(submitted.request_id)).body == b"sampled prompt"
    first, again = server.backend.values_of("sample")
    assert first == again
    assert len(server.usage) == 1


async def test_a_sample_that_kills_the_worker_three_times_is_failed_by_name(server: Life) -> None:
    server.backend.hold("sample")
    submitted = await server.submit(0)
    for deaths in (1, 2, 3):
        await die_while_sampling(server, calls=deaths, reason=f"signal {deaths}")
        server.backend.hold("sample")

    assert await server.error(submitted.request_id) == {
        "error": "the sample killed the worker 3 times, and is not tried again. The last time: signal 3",
        "category": "server",
    }
    assert len(server.backend.values_of("sample")) == 3
    assert server.usage == []


async def test_samples_that_died_once_are_run_again_together(server: Life) -> None:
    server.backend.hold("sample")
    submitted = [await server.submit(seq_id) for seq_id in range(3)]
    await die_while_sampling(server, calls=3)
    server.backend.hold("sample")

    await until_called(server, 6)
    server.backend.let_go("sample")
    for each in submitted:
        assert not (await server.result(each.request_id)).is_failure


async def test_samples_that_died_twice_are_run_one_by_one_so_that_only_the_guilty_one_fails(server: Life) -> None:
    server.backend.hold("sample")
    submitted = {seq_id: await server.submit(seq_id) for seq_id in range(3)}
    guilty = submitted[1].request_id
    for calls in (3, 6):
        await die_while_sampling(server, calls=calls)
        server.backend.hold("sample")

    for alone in range(7, 10):
        await until_called(server, alone)
        await settle_down()
        assert len(server.backend.values_of("sample")) == alone
        if server.backend.values_of("sample")[-1]["key"] == guilty:
            server.backend.die("signal 11")
        else:
            server.backend.let_go("sample")
        server.backend.hold("sample")

    assert "killed the worker 3 times" in (await server.error(guilty))["error"]
    for seq_id in (0, 2):
        assert not (await server.result(submitted[seq_id].request_id)).is_failure


async def test_a_suspect_waits_for_other_suspects_and_the_rest_do_not(server: Life, suspects: CrashSuspects) -> None:
    server.backend.hold("sample")
    suspect = await server.submit(0)
    async with suspects.alone():
        await die_while_sampling(server, calls=1)
        other = await server.submit(1)

        assert not (await server.result(other.request_id)).is_failure
        assert [values["key"] for values in server.backend.values_of("sample")] == [
            suspect.request_id,
            other.request_id,
        ]

    assert not (await server.result(suspect.request_id)).is_failure


async def test_a_suspect_that_is_cancelled_while_it_waits_is_not_run(server: Life, suspects: CrashSuspects) -> None:
    server.backend.hold("sample")
    submitted = await server.submit(0)
    async with suspects.alone():
        await die_while_sampling(server, calls=1)
        await settle_down()
        server.sampling.cancel(submitted.request_id)

    await server.sampling.drained()

    assert len(server.backend.values_of("sample")) == 1
    assert (await server.error(submitted.request_id))["error"] == "the sample was cancelled"


async def test_how_often_a_worker_may_die_is_a_limit(tmp_path: Path, store: Store) -> None:
    backend = FakeBackend(store)
    async with life(tmp_path / "samples", backend, limits=EngineLimits(deaths=1)) as server:
        backend.fail_next("sample", WorkerLost("signal 9"))
        submitted = await server.submit(0)

        assert "killed the worker 1 times" in (await server.error(submitted.request_id))["error"]


async def test_missing_weights_are_recovered_once_and_then_sampled_from(server: Life) -> None:
    asked: list[SamplerSource] = []

    async def recover(source: SamplerSource) -> bool:
        asked.append(source)
        return True

    server.recover_weights = recover
    server.backend.fail_next("sample", BadRequest("not in the store", code="missing"))
    submitted = await server.submit(0)

    assert not (await server.result(submitted.request_id)).is_failure
    assert asked == [SOURCE]


async def test_weights_that_stay_missing_are_not_recovered_for_ever(server: Life) -> None:
    asked: list[SamplerSource] = []

    async def recover(source: SamplerSource) -> bool:
        asked.append(source)
        server.backend.fail_next("sample", BadRequest("not in the store", code="missing"))
        return True

    server.recover_weights = recover
    server.backend.fail_next("sample", BadRequest("not in the store", code="missing"))
    submitted = await server.submit(0)

    assert (await server.error(submitted.request_id))["error"].startswith("the weights of this sampler are gone")
    assert asked == [SOURCE]


async def test_a_run_that_recovers_weights_may_be_a_suspect(server: Life, suspects: CrashSuspects) -> None:
    async def recover(_: SamplerSource) -> bool:
        async with suspects.alone():
            return True

    server.recover_weights = recover
    server.backend.hold("sample")
    submitted = await server.submit(0)
    await die_while_sampling(server, calls=1)
    server.backend.fail_next("sample", BadRequest("not in the store", code="missing"))

    async with asyncio.timeout(10):
        assert not (await server.result(submitted.request_id)).is_failure


async def test_other_failures_are_nobodys_death(server: Life) -> None:
    for seq_id in range(4):
        server.backend.fail_next("sample", ServerFailure("logits are NaN"))
        submitted = await server.submit(seq_id)
        assert (await server.error(submitted.request_id))["error"] == "logits are NaN"

    assert len(server.backend.values_of("sample")) == 4


async def test_a_sample_that_no_worker_heard_of_killed_none(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = FakeBackend(store)
    backend.fail_next("sample", WorkerLost("signal 9", code="unsent"))
    async with life(tmp_path, backend, limits=EngineLimits(deaths=1)) as server:
        attempts: list[int] = []
        ordinary = server.journal.attempt

        def attempt(request_id: str, *, deaths: int) -> asyncio.Future[None]:
            attempts.append(deaths)
            return ordinary(request_id, deaths=deaths)

        monkeypatch.setattr(server.journal, "attempt", attempt)
        submitted = await server.submit(0)

        assert (await server.result(submitted.request_id)).body == b"sampled prompt"
    assert len(backend.values_of("sample")) == 2
    assert attempts == []  # should the server die, it was under way once, which the request itself says
