"""A PostgreSQL server that goes away and comes back, below an engine that works."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from chockstone.catalog import CatalogUnavailable
from chockstone.catalog.database import retry
from support.engine.lives import archived, lived
from support.engine.making import until
from support.postgres import PostgresServer, stoppable_postgres


@pytest.fixture
def server() -> PostgresServer:
    return stoppable_postgres()


@pytest.fixture(autouse=True)
def short_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "_RETRY_SECONDS", 0.1)
    monkeypatch.setattr(retry, "_LONGEST_PAUSE_SECONDS", 0.1)


async def test_a_run_is_trained_on_and_a_save_waits_until_the_catalog_is_back(
    server: PostgresServer, home: Path
) -> None:
    async with lived(home, database=server.create_schema()) as life:
        live = await life.make()
        await life.train(1)
        server.stop()

        await life.train(2)
        saving = await life.ask_save("a")
        after = await life.ask_pass(3)
        await until(lambda: life.engine.why_waiting(saving) is not None)
        assert "stopped database server" in (life.engine.why_waiting(saving) or "")
        assert not live.lane.is_idle()
        server.start()

        assert "error" not in await life.told(saving)
        assert not (await life.result(after)).is_failure
        assert await archived(life, "a") == 3


async def test_an_archive_that_is_written_when_the_catalog_goes_is_published_when_it_is_back(
    server: PostgresServer, home: Path
) -> None:
    async with lived(home, database=server.create_schema()) as life:
        await life.make()
        await life.train(1)
        life.backend.hold("disk")
        saving = await life.ask_save("a")
        await until(lambda: "save" in life.backend.words())
        server.stop()
        life.backend.let_go("disk")
        await life.train(2)  # the run goes on meanwhile
        await asyncio.sleep(0.3)
        server.start()

        assert "error" not in await life.told(saving)
        assert await archived(life, "a") == 1


async def test_a_new_run_and_an_ended_one_wait_as_well(server: PostgresServer, home: Path) -> None:
    async with lived(home, database=server.create_schema()) as life:
        live = await life.make()
        server.stop()
        closing = await life.engine.training.close(live)
        await asyncio.sleep(0.3)
        with pytest.raises(CatalogUnavailable):
            await life.catalog.sessions.get("s")  # a request is told, and comes again
        server.start()

        assert "error" not in await life.told(closing)
        assert (await life.catalog.runs.get(live.run_id)).state == "unloaded"
        assert await life.make(1)


async def test_a_server_that_stops_while_the_catalog_is_away_leaves_its_work_to_the_next(
    server: PostgresServer, home: Path
) -> None:
    database = server.create_schema()
    async with lived(home, database=database) as life:
        await life.make()
        await life.train(1)
        server.stop()
        saving = await life.ask_save("a")
        await life.ask_pass(2)
    server.start()

    async with lived(home, after=life, database=database) as next_life:
        assert "error" not in await next_life.told(saving)
        assert await archived(next_life, "a") == 1
        assert await next_life.state() == (1, 2, 1)


async def test_a_worker_that_dies_meanwhile_is_brought_back_when_the_catalog_is(
    server: PostgresServer, home: Path
) -> None:
    async with lived(home, database=server.create_schema()) as life:
        await life.make()
        await life.train(1)
        server.stop()
        life.backend.die("signal 9")
        step = await life.ask_pass(2)
        await asyncio.sleep(0.3)
        server.start()

        assert not (await life.result(step)).is_failure
        assert await life.state() == (1, 2, 1)
