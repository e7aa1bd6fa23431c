"""Several workers behind one engine: deaths, poison and restarts under many runs."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

from chockstone.catalog import Catalog
from chockstone.checkpoints import Store
from chockstone.engine.storage.archive_storage import ArchiveStorage
from chockstone.wire.failures import BadRequest
from support.engine.making import NOW, answer, live_run, made_run, result_of, until
from support.engine.replicated import SEQ_IDS, replicated


async def test_runs_are_spread_over_the_replicas(
    store: Store, catalog: Catalog, storage: ArchiveStorage, tmp_path: Path
) -> None:
    async with replicated(3, store, catalog, storage, tmp_path) as replicas:
        await replicas.make(6)

        assert replicas.places(6) == [0, 1, 2, 0, 1, 2]
        assert [await replicas.train(number, number) for number in range(6)] == [0, 1, 2, 3, 4, 5]
        assert [len(backend.runs) for backend in replicas.backends] == [2, 2, 2]


async def test_runs_of_a_replica_that_died_go_on_in_another_and_the_rest_is_undisturbed(
    store: Store, catalog: Catalog, storage: ArchiveStorage, tmp_path: Path
) -> None:
    async with replicated(2, store, catalog, storage, tmp_path) as replicas:
        dying, other = replicas.backends
        await replicas.make(4)
        for number in range(4):
            await replicas.train(number, 1, 2, 3)
        dying.hold("forward_backward")
        asked = {number: await replicas.ask_pass(number, 10) for number in range(4)}
        await until(lambda: dying.words().count("forward_backward") == 8)
        assert [(await result_of(replicas.engine, asked[number])).body for number in (1, 3)] == [b"loss 10"] * 2
        replicas.restarts = False

        dying.die("signal 9")

        assert [(await result_of(replicas.engine, asked[number])).body for number in (0, 2)] == [b"loss 10"] * 2
        assert [(await answer(replicas.engine, await replicas.ask_step(n)))["metrics"]["weight"] for n in range(4)] == [
            16
        ] * 4
        assert replicas.places(4) == [1, 1, 1, 1]
        opened = [values["run_id"] for values in other.values_of("open_run")]
        assert [opened.count(f"s:train:{number}") for number in range(4)] == [1, 1, 1, 1]
        await made_run(replicas.engine, 4)
        assert live_run(replicas.engine, 4).replica == 1, "the dead one takes no run"


async def test_a_run_waits_while_all_replicas_are_dead_and_goes_to_the_first_that_is_ready(
    store: Store, catalog: Catalog, storage: ArchiveStorage, tmp_path: Path
) -> None:
    async with replicated(2, store, catalog, storage, tmp_path) as replicas:
        await replicas.make(1)
        await replicas.train(0, 5)
        replicas.restarts = False
        for backend in replicas.backends:
            backend.die("signal 9")
        asked = await replicas.ask_pass(0, 7)
        await until(lambda: live_run(replicas.engine, 0).waits_for is not None)
        assert not replicas.engine.is_ready

        replicas.restart(1)

        assert (await result_of(replicas.engine, asked)).body == b"loss 7"
        assert replicas.places(1) == [1]


async def test_a_poisonous_operation_follows_its_run_to_no_third_replica(
    store: Store, catalog: Catalog, storage: ArchiveStorage, tmp_path: Path
) -> None:
    async with replicated(3, store, catalog, storage, tmp_path) as replicas:
        for backend in replicas.backends:
            backend.poison = b"666"
        await replicas.make(3)
        for number in range(3):
            await replicas.train(number, 1)

        told = await answer(replicas.engine, await replicas.ask_pass(0, 666))

        assert "killed the worker 3 times" in told["error"]
        assert [backend.deaths for backend in replicas.backends] == [1, 2, 0]
        assert [await replicas.train(number, 1) for number in range(3)] == [2, 2, 2]


async def test_the_next_server_may_have_another_number_of_replicas(
    store: Store, catalog: Catalog, storage: ArchiveStorage, tmp_path: Path
) -> None:
    async with replicated(3, store, catalog, storage, tmp_path) as replicas:
        await replicas.make(6)
        for number in range(6):
            await replicas.train(number, number, 10)

    for count in (1, 2):
        async with replicated(count, store, catalog, storage, tmp_path) as replicas:
            await until(partial(replicas.has_woken, 6))
            weights = [await replicas.train(number, 100) for number in range(6)]

            assert weights == [number + 10 + 100 * count for number in range(6)]
            assert max(replicas.places(6)) == count - 1


async def test_a_run_moves_between_its_operations_and_keeps_its_state(
    store: Store, catalog: Catalog, storage: ArchiveStorage, tmp_path: Path
) -> None:
    async with replicated(2, store, catalog, storage, tmp_path) as replicas:
        source, target = replicas.backends
        await replicas.make(1)
        await replicas.train(0, 1, 2, 3)
        source.hold("forward_backward 10")
        before = await replicas.ask_pass(0, 10)
        moving = asyncio.create_task(replicas.engine.moves.move(live_run(replicas.engine, 0), 1))
        await until(lambda: source.words().count("forward_backward") == 4)
        await asyncio.sleep(0)
        after = await replicas.ask_step(0)

        source.let_go("forward_backward 10")

        assert await moving
        assert (await result_of(replicas.engine, before)).body == b"loss 10"
        assert (await answer(replicas.engine, after))["metrics"]["weight"] == 16
        assert (list(source.runs), list(target.runs)) == ([], ["s:train:0"])
        assert "forward_backward" not in target.words(), "nothing is replayed"


async def test_a_run_stays_where_it_is_if_the_disk_has_no_room_to_move_it(
    store: Store, catalog: Catalog, storage: ArchiveStorage, tmp_path: Path
) -> None:
    async with replicated(2, store, catalog, storage, tmp_path) as replicas:
        source = replicas.backends[0]
        await replicas.make(1)
        await replicas.train(0, 1)
        source.fail_next("save", BadRequest("the disk is full", code="no_room"))

        assert not await replicas.engine.moves.move(live_run(replicas.engine, 0), 1)

        assert await replicas.train(0, 2) == 3
        assert replicas.places(1) == [0]


async def test_a_replica_that_is_ready_again_gets_runs_back(
    store: Store, catalog: Catalog, storage: ArchiveStorage, tmp_path: Path
) -> None:
    async with replicated(2, store, catalog, storage, tmp_path) as replicas:
        await replicas.make(6)
        for number in range(6):
            await replicas.train(number, number)
        replicas.restarts = False
        replicas.backends[0].die("signal 9")
        assert [await replicas.train(number, 1) for number in range(6)] == [1, 2, 3, 4, 5, 6]
        assert replicas.places(6) == [1] * 6
        replicas.restart(0)

        await replicas.engine.moves.balance()

        assert sorted(replicas.places(6)) == [0, 0, 0, 1, 1, 1]
        assert [await replicas.train(number, 1) for number in range(6)] == [2, 3, 4, 5, 6, 7]
        moved = sorted(replicas.places(6))
        await replicas.engine.moves.balance()
        assert sorted(replicas.places(6)) == moved, "the load is even"


async def test_every_replica_has_the_custom_loss_that_its_runs_use(
    store: Store, catalog: Catalog, storage: ArchiveStorage, tmp_path: Path
) -> None:
    async with replicated(2, store, catalog, storage, tmp_path) as replicas:
        engine, definition = replicas.engine, {"graph": {"format": 1, "nodes": []}, "inputs": []}
        loss = await catalog.losses.create("s", 0, owner="local", name="mine", definition=definition, now=NOW)
        await answer(engine, engine.add_loss(loss))
        await replicas.make(2)
        for backend in replicas.backends:
            backend.custom = loss.loss_id

        for number in range(2):
            run = live_run(engine, number)
            asked = await engine.training.forward_backward(run, next(SEQ_IDS), b"1", loss=loss)
            assert (await result_of(engine, asked)).body == b"loss 1"

        assert [list(backend.losses) for backend in replicas.backends] == [[loss.loss_id]] * 2
        await engine.losses.drop("s")
        assert [backend.losses for backend in replicas.backends] == [{}, {}]
