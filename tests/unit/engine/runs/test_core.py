"""What the run core does for all runs of a session."""

from __future__ import annotations

import asyncio

from chockstone.catalog import Catalog
from chockstone.engine.engine import Engine
from chockstone.wire.failures import BadRequest
from support.engine.fake_backend import FakeBackend
from support.engine.making import RUN, made_run, settle_down


async def test_the_runs_of_a_session_are_closed_when_their_operations_have_ended(
    engine: Engine, backend: FakeBackend, catalog: Catalog
) -> None:
    run = await made_run(engine)
    request_id = await engine.training.forward_backward(run, 1, b"1")

    await engine._core.end_session("s")

    promise = engine.futures.get(request_id)
    assert promise is not None and promise.is_done()
    assert engine.runs.get(RUN) is None and RUN not in backend.runs
    assert (await catalog.runs.get(RUN)).state == "unloaded"


async def test_the_runs_of_a_session_are_parked_unless_they_are_busy(
    engine: Engine, backend: FakeBackend, catalog: Catalog
) -> None:
    run = await made_run(engine)
    backend.hold("forward_backward")
    await engine.training.forward_backward(run, 1, b"1")
    await settle_down()

    await engine._core.park_session("s")
    assert engine.runs.get(RUN) is run
    backend.let_go("forward_backward")
    await run.lane.drained()
    await engine._core.park_session("s")

    assert engine.runs.get(RUN) is None
    assert (await catalog.runs.get(RUN)).state == "parked"


async def test_a_parked_run_that_is_woken_while_its_session_ends_is_ended(
    engine: Engine, backend: FakeBackend, catalog: Catalog
) -> None:
    run = await made_run(engine)
    assert await engine._core.registry.park(run)
    waking = asyncio.create_task(engine.wake(RUN))
    while not engine.runs.lock(RUN).locked():
        await asyncio.sleep(0)

    await engine._core.end_session("s")

    assert await waking is not None
    assert engine.runs.get(RUN) is None and RUN not in backend.runs
    assert (await catalog.runs.get(RUN)).state == "unloaded"


async def test_a_run_that_its_worker_does_not_close_is_left_for_the_next_look(
    engine: Engine, backend: FakeBackend, catalog: Catalog
) -> None:
    await made_run(engine)
    backend.fail_next("close_run", BadRequest("not now"))

    await engine._core.end_session("s")

    assert engine.runs.get(RUN) is not None
    await engine._core.end_session("s")
    assert engine.runs.get(RUN) is None
