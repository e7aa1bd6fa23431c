from __future__ import annotations

import asyncio

import pytest

from chockstone.backends.protocol import SampleCall, WorkerLost, Workers
from chockstone.checkpoints import Store
from chockstone.engine.replicas.replica_set import ReplicaSet
from chockstone.wire.failures import BadRequest
from support.engine.fake_backend import FakeBackend
from support.engine.making import until


@pytest.fixture
def backends(store: Store) -> list[FakeBackend]:
    made = [FakeBackend(store) for _ in range(3)]
    for number, backend in enumerate(made):
        backend.generation = 1 + 10 * number
        backend.is_ready = True
    return made


@pytest.fixture
def replicas(backends: list[FakeBackend]) -> ReplicaSet:
    return ReplicaSet(backends)


def call(key: str) -> SampleCall:
    return SampleCall(key=key, base_model="tiny", seed=1, body=key.encode())


def _are_workers(replicas: ReplicaSet) -> Workers:
    return replicas


async def test_it_is_ready_when_one_replica_is(replicas: ReplicaSet, backends: list[FakeBackend]) -> None:
    for backend in backends:
        backend.is_ready = False
    waiting = asyncio.create_task(replicas.ready())
    await asyncio.sleep(0.01)
    assert not waiting.done()

    backends[2].is_ready = True

    await waiting
    assert replicas.is_ready
    assert replicas.status.phase == "ready"


async def test_it_is_lost_when_no_replica_will_be_started(replicas: ReplicaSet, backends: list[FakeBackend]) -> None:
    for backend in backends:
        backend.is_ready, backend.is_stopped = False, True

    with pytest.raises(WorkerLost, match="none will be started again"):
        await replicas.ready()


async def test_it_starts_and_stops_all(replicas: ReplicaSet, backends: list[FakeBackend]) -> None:
    await replicas.start()
    await replicas.stop()

    assert all(backend.is_ready and backend.is_stopped for backend in backends)


async def test_the_newest_worker_names_generation_and_environment(
    replicas: ReplicaSet, backends: list[FakeBackend]
) -> None:
    backends[0].generation, backends[0].environment = 99, {"device": "newest"}

    assert (replicas.generation, replicas.environment) == (99, {"device": "newest"})


async def test_the_status_counts_all_replicas(replicas: ReplicaSet, backends: list[FakeBackend]) -> None:
    backends[0].die("signal 9")
    backends[0].is_ready = False
    backends[1].die("signal 9")

    assert (replicas.status.deaths, replicas.status.memory.resident_bytes) == (2, 2 << 20)


async def test_samples_go_to_the_replica_with_the_fewest(replicas: ReplicaSet, backends: list[FakeBackend]) -> None:
    for backend in backends:
        backend.hold("sample")

    sampling = [asyncio.create_task(replicas.sample(call(f"k{number}"))) for number in range(6)]
    await until(lambda: sum(backend.words().count("sample") for backend in backends) == 6)

    assert [backend.words().count("sample") for backend in backends] == [2, 2, 2]
    for backend in backends:
        backend.let_go("sample")
    assert [(await each).content for each in sampling] == [f"sampled k{number}".encode() for number in range(6)]


async def test_a_sample_from_an_archive_waits_until_every_replica_has_written_it(
    replicas: ReplicaSet, backends: list[FakeBackend]
) -> None:
    backends[2].hold("written")
    archived = SampleCall(key="k", base_model="tiny", seed=1, body=b"1", archive="a")

    sampling = asyncio.create_task(replicas.sample(archived))
    await until(lambda: "written" in backends[2].words())
    assert "sample" not in backends[0].words()
    backends[2].let_go("written")

    assert (await sampling).content == b"sampled 1"


async def test_weights_that_only_another_replica_has_in_memory_are_sampled_there(
    replicas: ReplicaSet, backends: list[FakeBackend]
) -> None:
    for backend in backends[:2]:
        backend.fail_next("sample", BadRequest("it is not in the store", code="missing"))

    reply = await replicas.sample(SampleCall(key="k", base_model="tiny", seed=1, body=b"1", archive="a"))

    assert reply.content == b"sampled 1"
    assert backends[2].words().count("sample") == 1


async def test_weights_that_no_replica_has_are_missing(replicas: ReplicaSet, backends: list[FakeBackend]) -> None:
    for backend in backends:
        backend.fail_next("sample", BadRequest("it is not in the store", code="missing"))

    with pytest.raises(BadRequest, match="not in the store"):
        await replicas.sample(SampleCall(key="k", base_model="tiny", seed=1, body=b"1", archive="a"))


async def test_a_sample_is_cancelled_where_it_runs(replicas: ReplicaSet, backends: list[FakeBackend]) -> None:
    backends[0].hold("sample")
    sampling = asyncio.create_task(replicas.sample(call("k")))
    await until(lambda: "sample" in backends[0].words())

    await replicas.cancel("k")
    await replicas.cancel("another")

    assert [backend.words().count("cancel") for backend in backends] == [1, 0, 0]
    backends[0].let_go("sample")
    await sampling


async def test_a_sample_kills_no_third_replica(replicas: ReplicaSet, backends: list[FakeBackend]) -> None:
    for attempt in range(4):
        for backend in backends:
            backend.fail_next("sample", WorkerLost("signal 11"))
        backends[0].is_ready = attempt != 1  # the next one is chosen
        backends[1].is_ready = attempt != 2
        with pytest.raises(WorkerLost):
            await replicas.sample(call("poison"))

    assert [backend.words().count("sample") for backend in backends] == [3, 1, 0]


async def test_every_replica_forgets_an_archive(replicas: ReplicaSet, backends: list[FakeBackend]) -> None:
    backends[1].is_ready = False

    await replicas.forget("a")

    assert [backend.words() for backend in backends] == [["forget"], [], ["forget"]]


async def test_without_a_ready_replica_nothing_is_forgotten(replicas: ReplicaSet, backends: list[FakeBackend]) -> None:
    for backend in backends:
        backend.is_ready = False

    with pytest.raises(WorkerLost):
        await replicas.forget("a")


async def test_a_replica_that_leaves_takes_a_sample_only_if_no_other_is_ready(
    replicas: ReplicaSet, backends: list[FakeBackend]
) -> None:
    replicas.begin_leaving(0)

    await replicas.sample(call("one"))
    backends[1].is_ready = backends[2].is_ready = False
    await replicas.sample(call("two"))

    assert [backend.words().count("sample") for backend in backends] == [1, 1, 0]


async def test_a_replica_that_has_left_is_not_counted(replicas: ReplicaSet, backends: list[FakeBackend]) -> None:
    backends[2].trouble = "it has no memory"
    await replicas.remove(2)
    backends[0].is_ready = backends[1].is_ready = False

    assert (replicas.members, replicas.is_ready, replicas.trouble) == ([0, 1], False, None)
    assert [each.replica for each in replicas.facts()] == [0, 1]
    assert backends[2].is_stopped


async def test_without_a_maker_it_cannot_grow(replicas: ReplicaSet) -> None:
    assert not replicas.can_grow
