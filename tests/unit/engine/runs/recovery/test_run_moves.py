"""What moves is in ``behaviour/test_replicas.py``: it takes an engine."""

from __future__ import annotations

from chockstone.catalog import Catalog
from chockstone.engine.engine import Engine
from support.engine.fake_backend import FakeBackend
from support.engine.making import live_run, made_run


async def test_with_one_worker_nothing_moves(engine: Engine, backend: FakeBackend, catalog: Catalog) -> None:
    await made_run(engine)

    await engine.moves.keep()  # returns at once
    await engine.moves.balance()

    assert live_run(engine).replica == 0
    assert "save" not in backend.words()


async def test_a_run_does_not_move_to_where_it_is(engine: Engine, backend: FakeBackend, catalog: Catalog) -> None:
    run = await made_run(engine)

    assert not await engine.moves.move(run, 0)
    assert "save" not in backend.words()


async def test_a_run_that_ends_does_not_move(engine: Engine, backend: FakeBackend, catalog: Catalog) -> None:
    run = await made_run(engine)
    run.begin_closing()

    assert not await engine.moves.move(run, 0)
