from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from chockstone.backends.protocol import SampleCall
from chockstone.catalog import Catalog
from chockstone.checkpoints import Store
from chockstone.engine.engine import Engine
from chockstone.engine.replicas.replica_set import ReplicaSet
from chockstone.engine.runs.recovery import membership as membership_module
from chockstone.engine.storage.archive_storage import ArchiveStorage
from chockstone.wire.failures import BadRequest
from support.engine.fake_backend import FakeBackend
from support.engine.making import answer, live_run, made_run, result_of, until
from support.engine.replicated import Replicas, replicated


@pytest.fixture(autouse=True)
def _looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(membership_module, "_FIRST_LOOK_SECONDS", 0.001)
    monkeypatch.setattr(membership_module, "_LONGEST_LOOK_SECONDS", 0.01)


@pytest.fixture
async def two(store: Store, catalog: Catalog, storage: ArchiveStorage, tmp_path: Path) -> AsyncIterator[Replicas]:
    """Two replicas with two runs each, whose weights are 0 to 3."""
    async with replicated(2, store, catalog, storage, tmp_path) as replicas:
        await replicas.make(4)
        for number in range(4):
            await replicas.train(number, number)
        yield replicas


def numbers(replicas: Replicas) -> list[int]:
    return [each.number for each in replicas.engine.membership.members()]


async def left(replicas: Replicas, number: int) -> None:
    await until(lambda: replicas.backends[number].is_stopped)


async def test_a_drained_replica_leaves_with_every_run_moved_and_nothing_replayed(two: Replicas) -> None:
    two.engine.membership.drain(0)
    await left(two, 0)

    assert numbers(two) == [1]
    assert two.places(4) == [1] * 4
    assert [await two.train(number, 10) for number in range(4)] == [10, 11, 12, 13]
    assert two.backends[1].words().count("forward_backward") == 2 + 4


async def test_a_run_moves_off_between_two_operations(two: Replicas) -> None:
    source, target = two.backends
    source.hold("forward_backward 10")
    before = await two.ask_pass(0, 10)
    await until(lambda: source.words().count("forward_backward") == 3)

    two.engine.membership.drain(0)
    after = await two.ask_step(0)
    await until(lambda: two.places(4) == [0, 1, 1, 1])
    assert not source.is_stopped
    source.let_go("forward_backward 10")

    assert (await result_of(two.engine, before)).body == b"loss 10"
    assert (await answer(two.engine, after))["metrics"]["weight"] == 10
    await left(two, 0)
    assert "s:train:0" in target.runs


async def test_new_runs_go_to_replicas_that_stay(two: Replicas) -> None:
    two.backends[0].hold("forward_backward")
    asked = await two.ask_pass(0, 1)
    two.engine.membership.drain(0)

    for number in (4, 5, 6):
        await made_run(two.engine, number)

    assert [live_run(two.engine, number).replica for number in (4, 5, 6)] == [1, 1, 1]
    two.backends[0].let_go("forward_backward")
    await result_of(two.engine, asked)


async def test_a_replica_with_a_sample_leaves_when_the_sample_has_ended(two: Replicas) -> None:
    workers = two.engine._workers  # samples of the set, without a sampler
    assert isinstance(workers, ReplicaSet)
    two.backends[0].hold("sample")
    sampling = asyncio.create_task(workers.sample(SampleCall(key="k", base_model="tiny", seed=1, body=b"1")))
    await until(lambda: workers.has_samples(0))

    two.engine.membership.drain(0)
    await until(lambda: two.places(4) == [1] * 4)
    assert not two.backends[0].is_stopped
    two.backends[0].let_go("sample")

    assert (await sampling).content == b"sampled 1"
    await left(two, 0)


async def test_a_replica_that_dies_while_it_is_drained_loses_nothing(two: Replicas) -> None:
    two.backends[0].hold("save")  # of the archives to move with

    two.engine.membership.drain(0)
    await until(lambda: "save" in two.backends[0].words())
    two.backends[0].die("signal 9")

    await left(two, 0)
    assert [await two.train(number, 10) for number in range(4)] == [10, 11, 12, 13]
    assert numbers(two) == [1]


async def test_a_full_disk_keeps_the_runs_where_they_are_until_there_is_room(two: Replicas) -> None:
    source = two.backends[0]
    no_room = BadRequest("the disk is full", code="no_room")
    source.fail_next("save", no_room)

    two.engine.membership.drain(0)
    for _ in range(3):
        await until(lambda: "save" not in source._failures)  # it was met
        source.fail_next("save", no_room)
        assert await two.train(0, 1) > 0
    assert not source.is_stopped
    source._failures.clear()  # there is room

    await left(two, 0)
    assert [await two.train(number, 10) for number in range(4)] == [13, 11, 12, 13]


async def test_a_run_moves_off_where_the_target_dies_and_no_other_is_ready(two: Replicas) -> None:
    two.restarts = False
    two.backends[1].die("signal 9")
    two.engine.membership.drain(0)
    assert [await two.train(number, 10) for number in range(4)] == [10, 11, 12, 13]
    assert two.places(4) == [0] * 4, "there is nowhere else to go"

    two.restart(1)

    await left(two, 0)
    assert two.places(4) == [1] * 4


async def test_a_replica_that_is_undrained_stays(two: Replicas) -> None:
    two.backends[0].hold("forward_backward")
    asked = await two.ask_pass(0, 1)
    two.engine.membership.drain(0)
    await until(lambda: two.places(4) == [0, 1, 1, 1])

    two.engine.membership.undrain(0)
    two.backends[0].let_go("forward_backward")
    await result_of(two.engine, asked)
    await asyncio.sleep(0.05)  # several looks

    assert numbers(two) == [0, 1]
    assert not two.backends[0].is_stopped
    two.engine.membership.drain(0)
    await left(two, 0)


async def test_a_replica_joins_with_a_free_number_and_takes_runs(two: Replicas) -> None:
    assert await two.engine.membership.add() == 2
    two.engine.membership.drain(0)
    await left(two, 0)
    assert await two.engine.membership.add() == 0

    await made_run(two.engine, 4)

    assert numbers(two) == [0, 1, 2]
    assert live_run(two.engine, 4).replica == 0, "the replica with no run"
    assert [await two.train(number, 10) for number in range(4)] == [10, 11, 12, 13]


async def test_a_number_is_not_free_before_its_worker_has_ended(two: Replicas, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = asyncio.Event()

    async def stop() -> None:
        await ended.wait()

    monkeypatch.setattr(two.backends[0], "stop", stop)
    two.engine.membership.drain(0)
    await until(lambda: numbers(two) == [1])

    assert await two.engine.membership.add() == 2
    ended.set()


async def test_the_last_replica_is_not_drained(two: Replicas) -> None:
    two.engine.membership.drain(0)

    with pytest.raises(BadRequest, match="nowhere to go"):
        two.engine.membership.drain(1)


async def test_a_replica_that_cannot_be_started_says_why_and_can_be_removed(two: Replicas) -> None:
    two.joins_slowly = True
    added = await two.engine.membership.add()

    two.engine.membership.note_failed(added, "it has no memory")

    assert two.engine.membership.members()[added].failure == "it has no memory"
    two.engine.membership.drain(added)
    await left(two, added)
    assert numbers(two) == [0, 1]
    two.engine.membership.drain(0)
    with pytest.raises(BadRequest, match="nowhere to go"):
        two.engine.membership.drain(1)


async def test_there_is_a_maximum(two: Replicas, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(membership_module, "_MOST_MEMBERS", 2)

    with pytest.raises(BadRequest, match="there are 2 already"):
        await two.engine.membership.add()


async def test_a_server_with_one_worker_has_no_replicas_to_change(engine: Engine, backend: FakeBackend) -> None:
    with pytest.raises(BadRequest, match="--replicas N"):
        await engine.membership.add()
    with pytest.raises(BadRequest, match="--replicas N"):
        engine.membership.drain(0)

    [only] = engine.membership.members()
    assert (only.worker, only.is_leaving) == (backend, False)
