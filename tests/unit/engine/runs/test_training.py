from __future__ import annotations

import asyncio

import pytest

from chockstone.catalog import Catalog, CatalogUnavailable, RowMissing
from chockstone.checkpoints import Store
from chockstone.checkpoints.errors import StoreDenied
from chockstone.engine.config import Busy, Durability, EngineLimits
from chockstone.engine.engine import Engine
from chockstone.engine.futures import Result
from chockstone.wire.failures import ServerFailure
from chockstone.wire.paths import Kind
from support.engine.fake_backend import FakeBackend
from support.engine.making import (
    NOW,
    RUN,
    Start,
    answer,
    is_done,
    made_run,
    make_run,
    result_of,
    save,
    saved,
)

PATH = f"tinker://{RUN}/weights/a"


async def checkpoints(catalog: Catalog) -> list[str]:
    return [row.path for row in await catalog.checkpoints.list_by_run(RUN, now=NOW)]


async def test_a_run_asked_for_twice_is_made_once(engine: Engine, backend: FakeBackend) -> None:
    first = await make_run(engine)
    again = await make_run(engine)
    await answer(engine, first)
    afterwards = await make_run(engine)

    assert first == again == afterwards
    assert backend.words() == ["open_run"]


async def test_a_run_that_could_not_be_made_can_be_asked_for_again(
    engine: Engine, backend: FakeBackend, catalog: Catalog
) -> None:
    backend.fail_next("open_run", ServerFailure("out of memory"))
    await answer(engine, await make_run(engine))

    assert await answer(engine, await make_run(engine)) == {"model_id": RUN, "type": "create_model"}
    row = await catalog.runs.get(RUN)
    assert (row.state, row.failure) == ("active", None)


async def test_a_run_of_a_session_that_is_not_there_is_not_made(engine: Engine, backend: FakeBackend) -> None:
    request_id = await make_run(engine, session_id="nobody")

    assert "error" in await answer(engine, request_id)
    assert engine.runs.get("nobody:train:0") is None
    assert "open_run" not in backend.words()


async def test_operations_run_in_the_order_they_came(engine: Engine, backend: FakeBackend) -> None:
    live = await made_run(engine)
    requests = [
        await engine.training.forward_backward(live, 3, b"5"),  # chunks come in any order
        await engine.training.forward_backward(live, 2, b"6"),
        await engine.training.optim_step(live, 4, {"learning_rate": 0.1}),
        await engine.training.forward_backward(live, 9, b"7"),
        await engine.training.optim_step(live, 10, {}),
    ]

    assert await result_of(engine, requests[0]) == Result(b"loss 5", "pass")
    assert await answer(engine, requests[2]) == {"metrics": {"weight": 11, "steps": 1.0}, "type": "optim_step"}
    assert await answer(engine, requests[4]) == {"metrics": {"weight": 18, "steps": 2.0}, "type": "optim_step"}
    assert backend.values_of("optim_step")[0] == {"run_id": RUN, "params": {"learning_rate": 0.1}}


async def test_a_repeated_operation_runs_once(engine: Engine, backend: FakeBackend) -> None:
    live = await made_run(engine)
    first = await engine.training.forward_backward(live, 1, b"5")
    again = await engine.training.forward_backward(live, 1, b"5")
    await answer(engine, await engine.training.optim_step(live, 2, {}))

    assert await engine.training.forward_backward(live, 1, b"5") == first == again
    assert backend.runs[RUN].weight == 5


async def test_an_operation_that_fails_fails_alone(engine: Engine, backend: FakeBackend) -> None:
    live = await made_run(engine)
    good = await engine.training.forward_backward(live, 1, b"5")
    bad = await engine.training.forward_backward(live, 2, b"five")
    step = await engine.training.optim_step(live, 3, {})

    assert not (await result_of(engine, good)).is_failure
    assert await answer(engine, bad) == {"error": "b'five' is not a number", "category": "user"}
    assert (await answer(engine, step))["metrics"]["weight"] == 5


async def test_runs_do_not_wait_for_each_other(engine: Engine, backend: FakeBackend) -> None:
    first, second = await made_run(engine, 0), await made_run(engine, 1)
    backend.hold("forward_backward")
    stuck = await engine.training.forward_backward(first, 1, b"5")

    await answer(engine, await engine.training.optim_step(second, 1, {}))

    assert not is_done(engine, stuck)
    backend.let_go("forward_backward")


async def test_training_goes_on_while_a_save_is_written(engine: Engine, backend: FakeBackend, catalog: Catalog) -> None:
    live = await made_run(engine)
    await engine.training.forward_backward(live, 1, b"5")
    await engine.training.optim_step(live, 2, {})
    backend.hold("disk")
    saving = await save(engine, live, 3)
    await engine.training.forward_backward(live, 4, b"1")
    step = await engine.training.optim_step(live, 5, {})

    assert (await answer(engine, step))["metrics"]["weight"] == 6
    assert not is_done(engine, saving)
    assert await checkpoints(catalog) == []

    backend.let_go("disk")
    assert (await answer(engine, saving))["path"] == PATH
    assert list(backend.archives.values()) == [5]  # as it was when the lane came to it
    assert await checkpoints(catalog) == [PATH]


async def test_a_failed_save_leaves_no_row_and_its_name_free(
    engine: Engine, backend: FakeBackend, catalog: Catalog
) -> None:
    live = await made_run(engine)
    backend.fail_next("disk", ServerFailure("the disk is full"))

    assert await answer(engine, await save(engine, live, 1)) == {"error": "the disk is full", "category": "server"}
    assert await checkpoints(catalog) == []
    assert await catalog.checkpoints.list_pending() == ()
    assert (await saved(engine, live, 2)).state == "ready"


async def test_a_save_that_cannot_be_published_leaves_no_row(
    engine: Engine, catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = await made_run(engine)

    async def unavailable(*_: object, **__: object) -> None:
        raise CatalogUnavailable("the disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(catalog.checkpoint_saves, "commit", unavailable)
        told = await answer(engine, await save(engine, live, 1))

    assert told["category"] == "server"
    assert await catalog.checkpoints.list_pending() == ()


async def test_an_overwrite_replaces_the_checkpoint_and_deletes_its_archive(
    engine: Engine, backend: FakeBackend, catalog: Catalog
) -> None:
    live = await made_run(engine)
    old = await saved(engine, live, 1)
    await engine.training.forward_backward(live, 2, b"5")
    await engine.training.optim_step(live, 3, {})
    backend.hold("disk")
    saving = await save(engine, live, 4, overwrite=True)
    await answer(engine, await engine.training.optim_step(live, 5, {}))

    assert backend.archives == {old.archive: 0}  # until the new one is durable
    assert await catalog.checkpoints.get(RUN, "weights", "a", now=NOW) == old
    backend.let_go("disk")
    assert (await answer(engine, saving))["path"] == PATH

    new = await catalog.checkpoints.get(RUN, "weights", "a", now=NOW)
    assert backend.archives == {new.archive: 5}
    assert await catalog.trash.list() == ()


async def test_an_overwrite_that_fails_leaves_the_old_checkpoint(
    engine: Engine, backend: FakeBackend, catalog: Catalog
) -> None:
    live = await made_run(engine)
    old = await saved(engine, live, 1)
    backend.fail_next("disk", ServerFailure("the disk is full"))

    assert "error" in await answer(engine, await save(engine, live, 2, overwrite=True))
    assert await catalog.checkpoints.get(RUN, "weights", "a", now=NOW) == old
    assert backend.archives == {old.archive: 0}


async def test_an_old_archive_that_cannot_be_deleted_does_not_fail_the_save(
    engine: Engine, store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    live = await made_run(engine)
    old = await saved(engine, live, 1)

    def refuse(name: str) -> bool:
        raise StoreDenied(f"{name} is read-only")

    with monkeypatch.context() as patched:
        patched.setattr(store, "delete", refuse)
        assert (await answer(engine, await save(engine, live, 2, overwrite=True)))["path"] == PATH

    assert f"archive not deleted archive={old.archive}" in caplog.text
    assert [each.archive for each in await engine.checkpoints.list_trash(None)] == [old.archive]
    assert [each.archive for each in await engine.checkpoints.purge_due()] == [old.archive]


async def test_a_name_that_is_taken_is_the_callers_to_change(engine: Engine, backend: FakeBackend) -> None:
    live = await made_run(engine)
    await saved(engine, live, 1)
    await saved(engine, live, 2, kind=Kind.SAMPLER_WEIGHTS)  # a name stands in each kind

    training = await answer(engine, await save(engine, live, 3))
    sampler = await answer(engine, await save(engine, live, 4, kind=Kind.SAMPLER_WEIGHTS))

    assert training["category"] == sampler["category"] == "user"
    assert "exists already" in training["error"] and "overwrite=True" in training["error"]
    assert "exists already" in sampler["error"] and "overwrite" not in sampler["error"]
    assert backend.words().count("save") == 2


async def test_a_second_save_of_a_name_waits_for_the_first(
    engine: Engine, backend: FakeBackend, catalog: Catalog
) -> None:
    live = await made_run(engine)
    backend.hold("disk")
    first = await save(engine, live, 1)
    refused = await save(engine, live, 2)
    second = await save(engine, live, 3, overwrite=True)
    while "save" not in backend.words():
        await asyncio.sleep(0.001)
    await asyncio.sleep(0.05)  # time enough to be refused
    assert not is_done(engine, refused) and not is_done(engine, second)

    backend.let_go("disk")

    assert (await answer(engine, first))["path"] == PATH
    assert (await answer(engine, refused))["category"] == "user"
    assert (await answer(engine, second))["path"] == PATH
    assert list(backend.archives) == [(await catalog.checkpoints.get(RUN, "weights", "a", now=NOW)).archive]


async def test_saves_under_different_names_are_written_together(engine: Engine, backend: FakeBackend) -> None:
    live = await made_run(engine)
    backend.hold("disk")
    requests = [await save(engine, live, 1, "a"), await save(engine, live, 2, "b")]

    while backend.words().count("save") < 2:
        await asyncio.sleep(0.001)

    backend.let_go("disk")
    assert [(await answer(engine, request_id))["path"][-1] for request_id in requests] == ["a", "b"]


async def test_a_repeated_save_gives_the_original(engine: Engine, backend: FakeBackend) -> None:
    live = await made_run(engine)
    first = await save(engine, live, 1)
    again = await save(engine, live, 1)
    told = await answer(engine, first)

    assert await save(engine, live, 1) == first == again
    assert told["path"] == PATH
    assert backend.words().count("save") == 1


async def test_a_run_made_anew_never_passes_an_old_checkpoint_off_as_its_own(
    engine: Engine, backend: FakeBackend
) -> None:
    """Its numbers begin again, though the names of its archives do not."""
    live = await made_run(engine)
    old = await saved(engine, live, 1)
    await answer(engine, await engine.training.close(live))
    live = await made_run(engine)
    await engine.training.forward_backward(live, 2, b"5")
    await engine.training.optim_step(live, 3, {})

    refused = await answer(engine, await save(engine, live, 1))
    assert refused["category"] == "user"
    assert backend.archives == {old.archive: 0}

    new = await saved(engine, live, 4, overwrite=True)
    assert backend.archives == {new.archive: 5}


async def test_a_retry_of_unnamed_weights_gets_the_first_session_though_it_asks_for_another(
    engine: Engine, backend: FakeBackend
) -> None:
    live = await made_run(engine)

    first = await engine.training.save_for_sampling(live, 1, 4)
    again = await engine.training.save_for_sampling(live, 1, 5)

    assert first == again
    assert (await answer(engine, again))["sampling_session_id"] == "s:sample:4"
    assert backend.words().count("snapshot") == 1


async def test_checkpoints_outlive_their_run(engine: Engine, catalog: Catalog) -> None:
    live = await made_run(engine)
    source = await saved(engine, live, 1)
    await answer(engine, await engine.training.close(live))

    assert await checkpoints(catalog) == [PATH]
    assert (await answer(engine, await make_run(engine, 1, source=source)))["type"] == "load_weights"


async def test_a_full_server_parks_a_run_for_the_next_and_makes_none_while_all_are_busy(
    start: Start, backend: FakeBackend, catalog: Catalog
) -> None:
    engine = await start(limits=EngineLimits(runs=1))
    live = await made_run(engine)
    backend.hold("forward_backward")
    stuck = await engine.training.forward_backward(live, 1, b"5")

    with pytest.raises(Busy, match="1 runs are loaded"):
        await make_run(engine, 1)
    with pytest.raises(RowMissing):
        await catalog.runs.get("s:train:1")

    backend.let_go("forward_backward")
    await result_of(engine, stuck)
    await live.lane.drained()
    assert "error" not in await answer(engine, await make_run(engine, 1))
    assert list(backend.runs) == ["s:train:1"]
    assert (await catalog.runs.get(RUN)).state == "parked"


async def test_without_a_journal_no_run_is_parked(start: Start, backend: FakeBackend) -> None:
    engine = await start(limits=EngineLimits(runs=1), durability=Durability(journal="off"))
    live = await made_run(engine)

    with pytest.raises(Busy):
        await make_run(engine, 1)

    await answer(engine, await engine.training.close(live))
    assert "error" not in await answer(engine, await make_run(engine, 1))


async def test_a_run_takes_only_so_many_operations(start: Start, backend: FakeBackend) -> None:
    engine = await start(limits=EngineLimits(operations_per_run=1))
    live = await made_run(engine)
    backend.hold("forward_backward")
    await engine.training.forward_backward(live, 1, b"1")
    await engine.training.forward_backward(live, 2, b"1")

    with pytest.raises(Busy):
        await engine.training.forward_backward(live, 3, b"1")

    backend.let_go("forward_backward")
    await live.lane.drained()
    assert not (await result_of(engine, await engine.training.forward_backward(live, 3, b"1"))).is_failure


async def test_bodies_that_wait_count_against_the_servers_memory(start: Start, backend: FakeBackend) -> None:
    engine = await start(limits=EngineLimits(queued_bytes=10))
    live = await made_run(engine)
    await engine.training.forward_backward(live, 1, b"12345")

    with pytest.raises(Busy):
        await engine.training.forward_backward(live, 2, b"123456")

    await live.lane.drained()
    await engine.training.forward_backward(live, 2, b"123456")
    await live.lane.drained()


async def test_a_run_that_takes_no_more_operations_can_still_be_unloaded(start: Start, backend: FakeBackend) -> None:
    engine = await start(limits=EngineLimits(operations_per_run=1))
    live = await made_run(engine)
    await engine.training.forward_backward(live, 1, b"1")
    await engine.training.forward_backward(live, 2, b"1")

    told = await answer(engine, await engine.training.close(live))

    assert told["type"] == "unload_model"
    assert live.is_closing
