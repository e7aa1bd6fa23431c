from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from chockstone.catalog import Catalog, LossRow
from chockstone.engine.config import Durability
from chockstone.engine.engine import Engine
from chockstone.engine.samples.sampling import SamplerSource
from chockstone.engine.storage.archive_storage import ArchiveStorage
from chockstone.wire.failures import BadRequest, ServerFailure
from support.engine.fake_backend import FakeBackend
from support.engine.making import (
    NOW,
    RUN,
    answer,
    is_done,
    live_run,
    lose_worker,
    made_run,
    make_run,
    result_of,
    save,
    saved,
    settle_down,
    started,
    until,
)

LOSS = LossRow("s:loss:0", "s", 0, "local", "mine", {"graph": {}, "inputs": []}, NOW)


async def until_state(catalog: Catalog, run_id: str, state: str) -> str:
    """Why the run is in the state it comes to be in."""
    async with asyncio.timeout(10):
        while (row := await catalog.runs.get(run_id)).state != state:
            await asyncio.sleep(0.001)
    return row.failure or ""


async def test_a_restarted_server_without_a_journal_has_lost_its_runs_and_says_how_to_go_on(
    catalog: Catalog, backend: FakeBackend, storage: ArchiveStorage
) -> None:
    await catalog.runs.create("s", 0, owner="local", base_model="tiny", spec={"rank": 8}, now=NOW)
    await catalog.runs.create("s", 1, owner="local", base_model="tiny", spec={"rank": 8}, now=NOW, state="unloaded")

    async with started(backend, catalog, storage, durability=Durability(journal="off")):
        why = await until_state(catalog, RUN, "lost")

    assert "the server was restarted, and keeps no journal. Resume it with" in why
    assert (await catalog.runs.get("s:train:1")).state == "unloaded"


async def test_a_run_whose_journal_is_gone_is_lost_and_says_how_to_go_on(
    catalog: Catalog, backend: FakeBackend, storage: ArchiveStorage
) -> None:
    await catalog.runs.create("s", 0, owner="local", base_model="tiny", spec={"rank": 8}, now=NOW)

    async with started(backend, catalog, storage) as engine:
        why = await until_state(catalog, RUN, "lost")
        assert await engine.wake(RUN) is None

    assert "cannot be read" in why and "Resume it from its last checkpoint" in why


async def test_a_restarted_server_gives_unfinished_saves_up(
    catalog: Catalog, backend: FakeBackend, storage: ArchiveStorage
) -> None:
    await catalog.checkpoint_saves.begin(
        RUN, "weights", "a", archive="x", owner="local", base_model="tiny", spec={"rank": 8}, now=NOW
    )

    async with started(backend, catalog, storage):
        assert await catalog.checkpoints.list_pending() == ()


async def test_an_engine_is_ready_when_its_backend_is(engine: Engine, backend: FakeBackend) -> None:
    assert engine.is_ready
    backend.is_ready = False
    assert not engine.is_ready


async def test_stopping_finishes_what_runs_and_leaves_what_waits_to_the_next_server(
    backend: FakeBackend, catalog: Catalog, storage: ArchiveStorage
) -> None:
    async with started(backend, catalog, storage) as engine:
        live = await made_run(engine)
        backend.hold("forward_backward")
        running = await engine.training.forward_backward(live, 1, b"5")
        waiting = await engine.training.optim_step(live, 2, {})
        await until(lambda: "forward_backward" in backend.words())

        stopping = asyncio.create_task(engine.stop())
        await settle_down()
        assert engine.is_stopping
        assert not stopping.done() and not backend.is_stopped
        backend.let_go("forward_backward")
        await stopping

        assert backend.is_stopped
        assert (await result_of(engine, running)).body == b"loss 5"
        assert not is_done(engine, waiting)
        assert "optim_step" not in backend.words()

    async with started(FakeBackend(backend.store), catalog, storage) as engine:
        assert (await answer(engine, waiting))["metrics"]["weight"] == 5
        assert (await result_of(engine, running)).body == b"loss 5"


async def test_stopping_does_not_wait_for_a_worker_that_never_came(
    backend: FakeBackend, catalog: Catalog, storage: ArchiveStorage
) -> None:
    backend.is_slow = True
    async with started(backend, catalog, storage) as engine:
        opening = await make_run(engine)

        await engine.stop()
        assert not is_done(engine, opening)

    async with started(FakeBackend(backend.store), catalog, storage) as engine:
        assert await answer(engine, opening) == {"model_id": RUN, "type": "create_model"}


async def test_stopping_waits_for_saves_that_are_being_written(
    backend: FakeBackend, catalog: Catalog, storage: ArchiveStorage
) -> None:
    async with started(backend, catalog, storage) as engine:
        live = await made_run(engine)
        backend.hold("disk")
        saving = await save(engine, live, 1)
        await until(lambda: "save" in backend.words())

        stopping = asyncio.create_task(engine.stop())
        await settle_down()
        assert not stopping.done()
        backend.let_go("disk")
        await stopping

        assert (await answer(engine, saving))["path"] == f"tinker://{RUN}/weights/a"
    assert (await catalog.checkpoints.get(RUN, "weights", "a", now=NOW)).state == "ready"


async def test_stopping_waits_for_samples(backend: FakeBackend, catalog: Catalog, storage: ArchiveStorage) -> None:
    async with started(backend, catalog, storage) as engine:
        backend.hold("sample")
        source = SamplerSource("s:sample:0", "local", "tiny", None)
        submitted = await engine.sampling.submit(source, 0, b"x", num_samples=1)

        stopping = asyncio.create_task(engine.stop())
        await settle_down()
        assert not stopping.done()
        backend.let_go("sample")
        await stopping

        assert (await result_of(engine, submitted.request_id)).body == b"sampled x"


async def test_stopping_writes_down_who_was_seen(
    backend: FakeBackend, catalog: Catalog, storage: ArchiveStorage
) -> None:
    later = NOW + timedelta(minutes=1)
    async with started(backend, catalog, storage, clock=lambda: later) as engine:
        engine.presence.saw_session("s")

    assert (await catalog.sessions.get("s")).last_heartbeat_at == later


async def test_a_lost_worker_fails_neither_what_ran_nor_what_waited(
    engine: Engine, backend: FakeBackend, catalog: Catalog
) -> None:
    live, other = await made_run(engine, 0), await made_run(engine, 1)
    await answer(engine, await engine.training.optim_step(other, 1, {}))
    backend.hold("forward_backward")
    running = await engine.training.forward_backward(live, 1, b"5")
    waiting = await engine.training.optim_step(live, 2, {})
    await until(lambda: "forward_backward" in backend.words())

    lose_worker(engine, backend)

    assert (await result_of(engine, running)).body == b"loss 5"
    assert (await answer(engine, waiting))["metrics"]["weight"] == 5
    await until(lambda: set(backend.runs) == {live.run_id, other.run_id})
    for run in (live, other):
        assert engine.runs.get(run.run_id) is run
        assert (await catalog.runs.get(run.run_id)).state == "active"


async def test_without_a_journal_a_lost_worker_takes_its_runs_with_it(
    backend: FakeBackend, catalog: Catalog, storage: ArchiveStorage
) -> None:
    async with started(backend, catalog, storage, durability=Durability(journal="off")) as engine:
        live = await made_run(engine)
        backend.hold("forward_backward")
        running = await engine.training.forward_backward(live, 1, b"5")
        waiting = await engine.training.optim_step(live, 2, {})
        await until(lambda: "forward_backward" in backend.words())

        lose_worker(engine, backend)

        for request_id in (running, waiting):
            told = await answer(engine, request_id)
            assert told["category"] == "server"
            assert "is not loaded any more: signal 9, and no journal is kept. Resume it with" in told["error"]
        assert "signal 9" in await until_state(catalog, RUN, "lost")


async def test_checkpoints_outlive_their_worker(engine: Engine, backend: FakeBackend) -> None:
    live = await made_run(engine)
    backend.runs[RUN].weight = 42
    source = await saved(engine, live, 1)

    lose_worker(engine, backend)

    assert "error" not in await answer(engine, await make_run(engine, 1, source=source))
    assert backend.runs["s:train:1"].weight == 42


async def test_a_save_that_died_with_its_worker_is_made_by_the_next_one(
    engine: Engine, backend: FakeBackend, catalog: Catalog
) -> None:
    live = await made_run(engine)
    backend.hold("disk")
    saving = await save(engine, live, 1)
    await until(lambda: "save" in backend.words())

    lose_worker(engine, backend)

    assert (await answer(engine, saving))["path"] == f"tinker://{RUN}/weights/a"
    assert await catalog.checkpoints.list_pending() == ()
    assert (await catalog.checkpoints.get(RUN, "weights", "a", now=NOW)).archive in backend.archives


async def test_a_run_that_the_worker_died_of_is_made_by_the_next_one(
    engine: Engine, backend: FakeBackend, catalog: Catalog
) -> None:
    backend.hold("open_run")
    opening = await make_run(engine)
    await until(lambda: backend.calls)

    lose_worker(engine, backend)

    assert await answer(engine, opening) == {"model_id": RUN, "type": "create_model"}
    assert list(backend.runs) == [RUN]
    assert (await catalog.runs.get(RUN)).state == "active"


async def test_a_run_made_anew_is_not_unloaded_by_the_end_of_the_first(engine: Engine, backend: FakeBackend) -> None:
    backend.fail_next("open_run", ServerFailure("out of memory"))
    backend.hold("close_run")  # with which the first is tidied away

    assert "error" in await answer(engine, await make_run(engine))
    second = asyncio.create_task(make_run(engine))
    await settle_down()
    backend.let_go("close_run")

    assert "error" not in await answer(engine, await second)
    await engine.training.forward_backward(live_run(engine), 1, b"5")
    assert (await answer(engine, await engine.training.optim_step(live_run(engine), 2, {})))["metrics"]["weight"] == 5
    assert RUN in backend.runs


async def test_a_loss_is_told_by_its_id(engine: Engine, backend: FakeBackend) -> None:
    told = await answer(engine, engine.add_loss(LOSS))

    assert told == {"loss_id": "s:loss:0", "type": "create_custom_loss"}
    assert backend.losses == {"s:loss:0": LOSS.definition}


async def test_a_loss_that_cannot_be_built_is_the_callers_to_change(engine: Engine, backend: FakeBackend) -> None:
    backend.fail_next("add_loss", BadRequest("'eval' is not allowed"))

    assert await answer(engine, engine.add_loss(LOSS)) == {"error": "'eval' is not allowed", "category": "user"}
    assert backend.losses == {}


async def test_a_loss_asked_for_twice_is_built_once(engine: Engine, backend: FakeBackend) -> None:
    first = engine.add_loss(LOSS)
    again = engine.add_loss(LOSS)
    await answer(engine, first)

    assert first == again == engine.add_loss(LOSS) == LOSS.loss_id
    assert backend.words() == ["add_loss"]


async def test_a_finished_session_frees_its_runs_and_unnamed_weights(
    engine: Engine, backend: FakeBackend, catalog: Catalog
) -> None:
    await catalog.sessions.create("t", owner="local", sdk_version="0.36.0", now=NOW)
    live = await made_run(engine)
    await answer(engine, await make_run(engine, session_id="t"))
    kept = await saved(engine, live, 1)
    await answer(engine, await engine.training.save_for_sampling(live, 2, 0))
    await catalog.samplers.create("s", 1, owner="local", base_model="tiny", archive=kept.archive, now=NOW)

    await engine.sessions.finish("s")
    await until(lambda: live.is_closing)
    await until_state(catalog, RUN, "unloaded")
    async with asyncio.timeout(10):
        while len(backend.archives) > 1:
            await asyncio.sleep(0.001)

    assert list(backend.runs) == ["t:train:0"]
    assert list(backend.archives) == [kept.archive]
    assert [live.run_id for live in engine.runs] == ["t:train:0"]


async def test_a_refusal_is_a_result_like_any_other(engine: Engine) -> None:
    request_id = engine.refuse("local", ServerFailure("the run is gone"))

    assert is_done(engine, request_id)
    assert await answer(engine, request_id) == {"error": "the run is gone", "category": "server"}


async def test_background_work_that_fails_is_logged(
    engine: Engine, catalog: Catalog, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(_: str) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(catalog.runs, "list_by_session", fail)

    await engine.sessions.finish("s")
    await until(lambda: "background work failed" in caplog.text)


async def test_for_a_deleted_checkpoint_that_is_sampled_from_no_run_is_woken(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    await made_run(engine)
    woken: list[str] = []

    async def wake(run_id: str) -> None:
        woken.append(run_id)

    monkeypatch.setattr(engine, "wake", wake)
    named = SamplerSource("s:sample:0", "local", "tiny", "s.train.0/sampler_weights/a.1")

    assert not await engine._recover_weights(named)
    assert woken == []
