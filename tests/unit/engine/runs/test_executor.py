"""What each command does, and what its client is told."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta

import pytest

from chockstone.catalog import Catalog, CheckpointRow
from chockstone.engine.engine import Engine
from chockstone.engine.storage.verification import SkippedCheckpointRow
from chockstone.wire.failures import BadRequest
from chockstone.wire.paths import Kind
from support.engine.fake_backend import FakeBackend, Numbers
from support.engine.making import (
    NOW,
    RUN,
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


async def checkpoint_of(engine: Engine, backend: FakeBackend, weight: int, base_model: str = "tiny") -> CheckpointRow:
    live = await made_run(engine, 7, base_model=base_model)
    backend.runs[live.run_id].weight = weight
    return await saved(engine, live, 1)


async def test_the_log_tells_what_a_run_was_made_from(engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "chockstone.engine.runs.executor")
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
    asked = {"run_id": RUN, "owner": "local", "base_model": "tiny", "spec": dict(row.spec), "must_fit": True}
    assert backend.values_of("open_run") == [asked]


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
