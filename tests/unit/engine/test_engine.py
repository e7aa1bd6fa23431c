from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from chockstone.catalog import Catalog, LossRow
from chockstone.engine.engine import Engine
from chockstone.engine.sampling import SamplerSource
from chockstone.engine.storage import Storage
from chockstone.wire.failures import BadRequest, ServerFailure

from .fake_backend import FakeBackend
from .making import NOW, RUN, answer, is_done, live_run, made_run, make_run, result_of, save, saved, settle_down

LOSS = LossRow("s:loss:0", "s", 0, "local", "mine", {"graph": {}, "inputs": []}, NOW)


def lose_worker(engine: Engine, backend: FakeBackend) -> None:
    backend.die("signal 9")
    engine.worker_lost("signal 9")


async def until_state(catalog: Catalog, run_id: str, state: str) -> str:
    """Why the run is in the state it comes to be in."""
    async with asyncio.timeout(10):
        while (row := await catalog.runs.get(run_id)).state != state:
            await asyncio.sleep(0.001)
    return row.failure or ""


async def test_a_restarted_server_has_lost_its_runs_and_says_how_to_go_on(
    catalog: Catalog, backend: FakeBackend, storage: Storage
) -> None:
    await catalog.runs.create("s", 0, owner="local", base_model="tiny", spec={"rank": 8}, now=NOW)
    await catalog.runs.create("s", 1, owner="local", base_model="tiny", spec={"rank": 8}, now=NOW, state="unloaded")
    engine = Engine(backend, catalog, storage, now=lambda: NOW)

    await engine.start()
    await engine.stop()

    row = await catalog.runs.get(RUN)
    assert row.state == "lost"
    assert "the server was restarted. Resume it with" in (row.failure or "")
    assert (await catalog.runs.get("s:train:1")).state == "unloaded"


async def test_a_restarted_server_gives_unfinished_saves_up(
    catalog: Catalog, backend: FakeBackend, storage: Storage
) -> None:
    await catalog.checkpoints.begin(
        RUN, "weights", "a", archive="x", owner="local", base_model="tiny", spec={"rank": 8}, now=NOW
    )
    engine = Engine(backend, catalog, storage, now=lambda: NOW)

    await engine.start()
    await engine.stop()

    assert await catalog.checkpoints.list_pending() == ()


async def test_an_engine_is_ready_when_its_backend_is(engine: Engine, backend: FakeBackend) -> None:
    assert engine.is_ready
    backend.is_ready = False
    assert not engine.is_ready


async def test_stopping_finishes_what_runs_and_fails_what_waits(
    backend: FakeBackend, catalog: Catalog, storage: Storage
) -> None:
    engine = Engine(backend, catalog, storage, now=lambda: NOW)
    await engine.start()
    live = await made_run(engine)
    backend.hold("pass")
    running = engine.training.forward_backward(live, 1, b"5")
    waiting = engine.training.optim_step(live, 2, {})
    await settle_down()

    stopping = asyncio.create_task(engine.stop())
    await settle_down()
    assert engine.is_stopping
    assert not stopping.done() and not backend.is_stopped
    backend.let_go("pass")
    await stopping

    assert backend.is_stopped
    assert (await result_of(engine, running)).body == b"loss 5"
    told = await answer(engine, waiting)
    assert told["category"] == "server"
    assert "shutting down" in told["error"]
    assert backend.runs[RUN].weight == 0


async def test_stopping_waits_for_saves_that_are_being_written(
    backend: FakeBackend, catalog: Catalog, storage: Storage
) -> None:
    engine = Engine(backend, catalog, storage, now=lambda: NOW)
    live = await made_run(engine)
    backend.hold("disk")
    saving = save(engine, live, 1)
    while "save" not in backend.words():
        await asyncio.sleep(0.001)

    stopping = asyncio.create_task(engine.stop())
    await settle_down()
    assert not stopping.done()
    backend.let_go("disk")
    await stopping

    assert (await answer(engine, saving))["path"] == f"tinker://{RUN}/weights/a"
    assert (await catalog.checkpoints.get(RUN, "weights", "a", now=NOW)).state == "ready"


async def test_stopping_waits_for_samples(backend: FakeBackend, catalog: Catalog, storage: Storage) -> None:
    engine = Engine(backend, catalog, storage, now=lambda: NOW)
    backend.hold("sample")
    submitted = engine.sampling.submit(SamplerSource("s:sample:0", "local", "tiny", None), 0, b"x", num_samples=1)

    stopping = asyncio.create_task(engine.stop())
    await settle_down()
    assert not stopping.done()
    backend.let_go("sample")
    await stopping

    assert (await result_of(engine, submitted.request_id)).body == b"sampled x"


async def test_stopping_writes_down_who_was_seen(backend: FakeBackend, catalog: Catalog, storage: Storage) -> None:
    later = NOW + timedelta(minutes=1)
    engine = Engine(backend, catalog, storage, now=lambda: later)
    await engine.start()
    engine.presence.saw_session("s")

    await engine.stop()

    assert (await catalog.sessions.get("s")).last_heartbeat_at == later


async def test_a_lost_worker_fails_what_ran_and_what_waited(
    engine: Engine, backend: FakeBackend, catalog: Catalog
) -> None:
    live, other = await made_run(engine, 0), await made_run(engine, 1)
    backend.hold("pass")
    running = engine.training.forward_backward(live, 1, b"5")
    waiting = engine.training.optim_step(live, 2, {})
    await settle_down()

    lose_worker(engine, backend)

    assert await answer(engine, running) == {"error": "signal 9", "category": "server"}
    told = await answer(engine, waiting)
    assert told["category"] == "server"
    assert "is not loaded any more: signal 9. Resume it with" in told["error"]
    for run in (live, other):
        assert engine.runs.get(run.run_id) is None
        assert "signal 9" in await until_state(catalog, run.run_id, "lost")


async def test_checkpoints_outlive_their_worker(engine: Engine, backend: FakeBackend) -> None:
    live = await made_run(engine)
    backend.runs[RUN].weight = 42
    source = await saved(engine, live, 1)

    lose_worker(engine, backend)

    assert "error" not in await answer(engine, make_run(engine, 1, source=source))
    assert backend.runs["s:train:1"].weight == 42


async def test_a_save_that_died_with_its_worker_leaves_no_row(
    engine: Engine, backend: FakeBackend, catalog: Catalog
) -> None:
    live = await made_run(engine)
    backend.hold("disk")
    saving = save(engine, live, 1)
    while "save" not in backend.words():
        await asyncio.sleep(0.001)

    lose_worker(engine, backend)

    assert (await answer(engine, saving))["category"] == "server"
    assert await catalog.checkpoints.list_pending() == ()


async def test_a_run_that_waited_for_a_worker_that_died_is_not_left_in_the_next_one(
    engine: Engine, backend: FakeBackend, catalog: Catalog
) -> None:
    backend.hold("open_run")  # until there is a worker, which will be the next one
    opening = make_run(engine)
    while not backend.calls:
        await asyncio.sleep(0.001)
    engine.worker_lost("signal 9")

    backend.let_go("open_run")

    told = await answer(engine, opening)
    assert told["category"] == "server"
    assert "signal 9" in told["error"]
    assert backend.runs == {}
    assert (await catalog.runs.get(RUN)).state == "lost"


async def test_a_run_made_anew_is_not_unloaded_by_the_end_of_the_first(engine: Engine, backend: FakeBackend) -> None:
    backend.hold("open_run")
    first = make_run(engine)
    while not backend.calls:
        await asyncio.sleep(0.001)
    engine.worker_lost("signal 9")
    second = make_run(engine)

    backend.let_go("open_run")

    assert "error" in await answer(engine, first)
    assert "error" not in await answer(engine, second)
    assert live_run(engine).opening_id == second
    assert RUN in backend.runs


async def test_a_loss_is_told_by_its_id(engine: Engine, backend: FakeBackend) -> None:
    told = await answer(engine, engine.add_loss(LOSS))

    assert told == {"loss_id": "s:loss:0", "type": "create_custom_loss"}
    assert backend.losses == {"s:loss:0": LOSS.definition}


async def test_a_loss_that_cannot_be_built_is_the_callers_to_change(engine: Engine, backend: FakeBackend) -> None:
    backend.fail_next("add_loss", BadRequest("'eval' is not allowed"))

    assert await answer(engine, engine.add_loss(LOSS)) == {"error": "'eval' is not allowed", "category": "user"}
    lose_worker(engine, backend)
    await settle_down()
    assert backend.losses == {}


async def test_the_next_worker_is_told_the_losses_again(engine: Engine, backend: FakeBackend) -> None:
    await answer(engine, engine.add_loss(LOSS))

    lose_worker(engine, backend)
    await settle_down()

    assert backend.losses == {"s:loss:0": LOSS.definition}


async def test_a_finished_session_frees_its_runs_and_unnamed_weights(
    engine: Engine, backend: FakeBackend, catalog: Catalog
) -> None:
    await catalog.sessions.create("t", owner="local", sdk_version="0.36.0", now=NOW)
    live = await made_run(engine)
    await answer(engine, make_run(engine, session_id="t"))
    kept = await saved(engine, live, 1)
    await answer(engine, engine.training.save_for_sampling(live, 2, 0))
    await catalog.samplers.create("s", 1, owner="local", base_model="tiny", archive=kept.archive, now=NOW)

    await engine.finish_session("s")
    assert live.is_closing
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


async def test_background_work_that_fails_is_logged(engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    await made_run(engine)
    live_run(engine).run_id = "nowhere"

    engine.worker_lost("signal 9")
    async with asyncio.timeout(10):
        while "background work failed" not in caplog.text:
            await asyncio.sleep(0.001)
