from __future__ import annotations

import asyncio
import logging
from datetime import timedelta

import pytest

from chockstone.catalog import Catalog, CatalogUnavailable, CheckpointRow, RowMissing
from chockstone.checkpoints import Store
from chockstone.checkpoints.errors import StoreDenied
from chockstone.engine.config import Busy, Durability, EngineLimits
from chockstone.engine.engine import Engine
from chockstone.engine.futures import Result
from chockstone.engine.storage.checkpoints import SkippedCheckpointRow
from chockstone.wire.failures import BadRequest, ServerFailure
from chockstone.wire.paths import Kind
from support.engine.fake_backend import FakeBackend, Numbers
from support.engine.making import (
    NOW,
    RUN,
    Start,
    answer,
    is_done,
    live_run,
    made_run,
    make_run,
    result_of,
    save,
    saved,
    until,
)

PATH = f"tinker://{RUN}/weights/a"


async def checkpoints(catalog: Catalog) -> list[str]:
    return [row.path for row in await catalog.checkpoints.list_by_run(RUN, now=NOW)]


async def test_the_log_tells_what_a_run_was_made_from(engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "chockstone.engine.runs.execution")
    source = await saved(engine, await made_run(engine), 1)

    await made_run(
        engine,
        1,
        source=source,
        skipped=[SkippedCheckpointRow(f"{PATH}b", "bad"), SkippedCheckpointRow(f"{PATH}c", "bad")],
    )

    assert f"run opened run=s:train:1 owner=local base_model=tiny rank=8 from={PATH} skipped=2" in caplog.text
    assert "run opened run=s:train:0 owner=local base_model=tiny rank=8\n" in caplog.text


async def test_a_run_is_made_once_its_row_is_written(engine: Engine, backend: FakeBackend, catalog: Catalog) -> None:
    backend.hold("open_run")
    request_id = await make_run(engine, user_metadata={"team": "a"})
    while not backend.calls:
        await asyncio.sleep(0.001)

    row = await catalog.runs.get(RUN)
    assert not is_done(engine, request_id)
    backend.let_go("open_run")

    assert await answer(engine, request_id) == {"model_id": RUN, "type": "create_model"}
    assert (row.state, row.owner, row.base_model, row.user_metadata) == ("active", "local", "tiny", {"team": "a"})
    asked = {"run_id": RUN, "owner": "local", "base_model": "tiny", "spec": dict(row.spec)}
    assert backend.values_of("open_run") == [asked]


async def test_a_run_asked_for_twice_is_made_once(engine: Engine, backend: FakeBackend) -> None:
    first = await make_run(engine)
    again = await make_run(engine)
    await answer(engine, first)
    afterwards = await make_run(engine)

    assert first == again == afterwards
    assert backend.words() == ["open_run"]


async def test_a_run_that_cannot_be_made_says_why_and_leaves_nothing_loaded(
    engine: Engine, backend: FakeBackend, catalog: Catalog
) -> None:
    backend.fail_next("open_run", BadRequest("rank 8 is too large"))
    request_id = await make_run(engine)
    queued = await engine.training.forward_backward(live_run(engine), 1, b"3")

    assert await answer(engine, request_id) == {"error": "rank 8 is too large", "category": "user"}
    assert "could not be made: rank 8 is too large" in (await answer(engine, queued))["error"]
    assert engine.runs.get(RUN) is None
    await until(lambda: "close_run" in backend.words())
    assert backend.runs == {}
    row = await catalog.runs.get(RUN)
    assert row.state == "lost"
    assert "rank 8 is too large" in (row.failure or "")


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


async def test_a_save_is_told_when_it_is_durable_and_in_the_catalog(
    engine: Engine, backend: FakeBackend, catalog: Catalog
) -> None:
    live = await made_run(engine)

    told = await answer(engine, await save(engine, live, 1, ttl_seconds=3600, user_metadata={"loss": "0.5"}))

    assert (told["path"], told["type"]) == (PATH, "save_weights")
    row = await catalog.checkpoints.get(RUN, "weights", "a", now=NOW)
    assert row.archive in backend.archives
    assert (row.state, row.expires_at) == ("ready", NOW + timedelta(hours=1))
    assert row.size_bytes == backend.store.stat(row.archive).size
    assert (row.owner, row.base_model, row.user_metadata) == ("local", "tiny", {"loss": "0.5"})
    (values,) = backend.values_of("save")
    assert (values["kind"], values["ttl_seconds"]) == ("weights", 3600)
    assert values["metadata"] == {
        "path": PATH,
        "owner": "local",
        "base_model": "tiny",
        "spec": dict(live.spec),
        "optimizer_config": {"type": "adamw"},
        "user_metadata": {"loss": "0.5"},
    }


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
        patched.setattr(catalog.checkpoints, "commit", unavailable)
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


async def test_a_sampler_save_is_a_checkpoint_of_its_kind(engine: Engine, backend: FakeBackend) -> None:
    live = await made_run(engine)

    told = await answer(engine, await save(engine, live, 1, kind=Kind.SAMPLER_WEIGHTS))

    assert (told["path"], told["type"]) == (f"tinker://{RUN}/sampler_weights/a", "save_weights_for_sampler")
    assert backend.values_of("save")[0]["kind"] == "sampler_weights"


async def test_unnamed_weights_open_a_sampling_session(engine: Engine, backend: FakeBackend, catalog: Catalog) -> None:
    live = await made_run(engine)

    told = await answer(engine, await engine.training.save_for_sampling(live, 1, 4))

    assert told == {"sampling_session_id": "s:sample:4", "type": "save_weights_for_sampler"}
    sampler = await catalog.samplers.get("s:sample:4")
    assert sampler.archive in backend.archives
    assert (sampler.owner, sampler.base_model, sampler.model_path) == ("local", "tiny", None)
    assert await checkpoints(catalog) == []


async def test_a_retry_of_unnamed_weights_gets_the_first_session_though_it_asks_for_another(
    engine: Engine, backend: FakeBackend
) -> None:
    live = await made_run(engine)

    first = await engine.training.save_for_sampling(live, 1, 4)
    again = await engine.training.save_for_sampling(live, 1, 5)

    assert first == again
    assert (await answer(engine, again))["sampling_session_id"] == "s:sample:4"
    assert backend.words().count("snapshot") == 1


async def checkpoint_of(engine: Engine, backend: FakeBackend, weight: int, base_model: str = "tiny") -> CheckpointRow:
    live = await made_run(engine, 7, base_model=base_model)
    backend.runs[live.run_id].weight = weight
    return await saved(engine, live, 1)


async def test_a_checkpoint_is_loaded_into_a_run(engine: Engine, backend: FakeBackend) -> None:
    source = await checkpoint_of(engine, backend, 42)
    live = await made_run(engine)

    told = await answer(engine, await engine.training.load(live, 1, source, with_optimizer=False))

    assert told == {"path": source.path, "model_id": RUN, "type": "load_weights"}
    assert backend.runs[RUN] == Numbers(weight=42)
    wanted = {"run_id": RUN, "archive": source.archive, "with_optimizer": False, "seal": source.seal}
    assert backend.values_of("load") == [wanted]


async def test_a_load_gets_what_was_to_be_saved_before_it_though_that_is_still_being_written(
    engine: Engine, backend: FakeBackend
) -> None:
    live = await made_run(engine)
    old = await saved(engine, live, 1)
    await engine.training.forward_backward(live, 2, b"5")
    await engine.training.optim_step(live, 3, {})
    backend.hold("disk")
    await save(engine, live, 4, overwrite=True)
    await engine.training.forward_backward(live, 5, b"1")
    step = await engine.training.optim_step(live, 6, {})
    loading = await engine.training.load(live, 7, old, with_optimizer=True)
    assert (await answer(engine, step))["metrics"]["weight"] == 6

    backend.let_go("disk")

    assert "error" not in await answer(engine, loading)
    assert backend.runs[RUN].weight == 5


async def test_a_checkpoint_of_another_base_model_is_refused(engine: Engine, backend: FakeBackend) -> None:
    source = await checkpoint_of(engine, backend, 42, base_model="other")
    live = await made_run(engine)

    told = await answer(engine, await engine.training.load(live, 1, source, with_optimizer=True))

    assert told["category"] == "user"
    assert "'other'" in told["error"] and "'tiny'" in told["error"]
    assert "load" not in backend.words()


async def test_a_run_can_be_made_from_a_checkpoint(engine: Engine, backend: FakeBackend) -> None:
    source = await checkpoint_of(engine, backend, 42)

    told = await answer(engine, await make_run(engine, source=source, with_optimizer=True))

    assert told == {"path": source.path, "model_id": RUN, "type": "load_weights"}
    assert backend.runs[RUN].weight == 42
    assert backend.values_of("load")[0]["with_optimizer"] is True


async def test_a_run_whose_checkpoint_does_not_load_is_not_left_in_the_worker(
    engine: Engine, backend: FakeBackend
) -> None:
    source = await checkpoint_of(engine, backend, 42)
    backend.store.delete(source.archive)

    told = await answer(engine, await make_run(engine, source=source))

    assert told["category"] == "user"
    await until(lambda: RUN not in backend.runs)
    assert engine.runs.get(RUN) is None


async def test_a_run_is_not_made_from_a_checkpoint_of_another_base_model(engine: Engine, backend: FakeBackend) -> None:
    source = await checkpoint_of(engine, backend, 42, base_model="other")

    told = await answer(engine, await make_run(engine, source=source))

    assert told["category"] == "user"
    assert {"run_id": RUN} not in [{"run_id": values["run_id"]} for values in backend.values_of("open_run")]


async def test_unloading_ends_a_run_after_what_was_queued_before(
    engine: Engine, backend: FakeBackend, catalog: Catalog
) -> None:
    live = await made_run(engine)
    before = await engine.training.forward_backward(live, 1, b"5")
    unload = await engine.training.close(live)
    after = await engine.training.forward_backward(live, 2, b"5")

    assert not (await result_of(engine, before)).is_failure
    assert await answer(engine, unload) == {"model_id": RUN, "type": "unload_model"}
    assert "was unloaded" in (await answer(engine, after))["error"]
    assert engine.runs.get(RUN) is None
    assert backend.runs == {}
    assert (await catalog.runs.get(RUN)).state == "unloaded"


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
