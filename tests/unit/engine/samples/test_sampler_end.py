from __future__ import annotations

import pytest

from chockstone.checkpoints.errors import StoreUnreachable
from chockstone.engine.config import EngineLimits
from chockstone.engine.engine import Engine
from chockstone.wire.failures import ServerFailure
from support.engine.fake_backend import FakeBackend
from support.engine.making import Start, answer, made_run, until


async def test_a_loop_that_makes_a_sampler_every_step_does_not_fill_the_disk(
    start: Start, backend: FakeBackend
) -> None:
    limits = EngineLimits(anonymous_samplers=2, anonymous_idle_seconds=-1)
    engine = await start(limits=limits)
    live = await made_run(engine)
    for number in range(6):
        await answer(engine, await engine.training.save_for_sampling(live, number + 1, number))

    engine.samplers.free_superseded()

    await until(lambda: len(backend.archives) == 2)
    assert set(backend.archives) == {"s.sample.4/ephemeral", "s.sample.5/ephemeral"}


async def test_weights_are_deleted_although_the_worker_died(engine: Engine, backend: FakeBackend) -> None:
    await answer(engine, await engine.training.save_for_sampling(await made_run(engine), 1, 0))
    backend.fail_next("forget", ServerFailure("the worker died"))

    await engine.sessions.finish("s")

    await until(lambda: not any(entry.name.endswith("/ephemeral") for entry in backend.store.entries()))


async def test_weights_that_cannot_be_deleted_now_are_reported_and_left(
    engine: Engine, backend: FakeBackend, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await answer(engine, await engine.training.save_for_sampling(await made_run(engine), 1, 0))
    backend.fail_next("forget", ServerFailure("the worker died"))

    async def refuse(_: str) -> None:
        raise StoreUnreachable("503")

    monkeypatch.setattr(engine.storage, "delete", refuse)
    await engine.sessions.finish("s")

    await until(lambda: "archive of a sampler not deleted yet archive=s.sample.0/ephemeral" in caplog.text)
