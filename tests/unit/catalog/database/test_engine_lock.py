from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from chockstone.catalog import Catalog, CatalogInUse, EngineLock
from chockstone.catalog.database import engine_lock
from support.postgres import shared_postgres

TERMINATE = """
    SELECT pg_terminate_backend(pid) FROM pg_stat_activity
    WHERE datname = current_database() AND application_name LIKE '{}%'
"""


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_lock, "_LOOK_SECONDS", 0.05)
    monkeypatch.setattr(engine_lock, "_CHECK_SECONDS", 0.05)
    monkeypatch.setattr(engine_lock, "_GIVE_UP_SECONDS", 0.3)


@pytest.fixture
def postgres_url() -> str:
    return shared_postgres().create_database()


@pytest.fixture
async def on_postgres(postgres_url: str) -> AsyncIterator[Catalog]:
    async with await Catalog.open(postgres_url) as catalog:
        yield catalog


async def until_held(catalog: Catalog) -> None:
    """By somebody who is not in this room."""
    for _ in range(200):
        try:
            await (await catalog.lock_engine("probe")).release()
        except CatalogInUse:
            return
        await asyncio.sleep(0.05)
    raise AssertionError("nobody takes the lock")


async def test_one_engine_at_a_time_runs_on_a_catalog(url: str, catalog: Catalog) -> None:
    first = await catalog.lock_engine("first")

    async with await Catalog.open(url) as again:
        with pytest.raises(CatalogInUse, match="one engine at a time runs on a catalog"):
            await again.lock_engine("second")
        await first.release()
        second = await again.lock_engine("second")
        with pytest.raises(CatalogInUse):
            await catalog.lock_engine("first")
        await second.release()


async def test_whoever_is_about_to_end_is_waited_for(catalog: Catalog) -> None:
    first = await catalog.lock_engine("first")
    waits: list[str] = []

    waiting = asyncio.create_task(catalog.lock_engine("second", wait_seconds=30, on_wait=lambda: waits.append("waits")))
    await asyncio.sleep(0.3)
    assert (waiting.done(), waits) == (False, ["waits"])
    await first.release()

    await (await waiting).release()


async def test_the_holder_is_named(on_postgres: Catalog) -> None:
    held = await on_postgres.lock_engine("chockstone on alpha: /data")

    with pytest.raises(CatalogInUse, match="in use by 'chockstone on alpha: /data' on 127.0.0.1"):
        await on_postgres.lock_engine("second")
    await held.release()


async def test_catalogs_of_other_databases_and_schemas_have_locks_of_their_own(postgres_url: str) -> None:
    server = shared_postgres()
    server.sql("CREATE SCHEMA other AUTHORIZATION chockstone", database=postgres_url)
    urls = [postgres_url, f"{postgres_url}?search_path=other", server.create_database()]

    catalogs = [await Catalog.open(url) for url in urls]
    locks = [await catalog.lock_engine("engine") for catalog in catalogs]

    for lock, catalog in zip(locks, catalogs, strict=True):
        await lock.release()
        await catalog.close()


async def test_a_lock_whose_connection_is_cut_is_taken_again(
    postgres_url: str, on_postgres: Catalog, hurried: None
) -> None:
    lost: list[str] = []
    lock = await on_postgres.lock_engine("engine")
    keeping = asyncio.create_task(lock.keep(lost.append))

    for _ in range(2):
        shared_postgres().sql(TERMINATE.format("engine"), database=postgres_url)
        await until_held(on_postgres)

    assert not lost and not keeping.done()
    keeping.cancel()
    await lock.release()
    await (await on_postgres.lock_engine("next")).release()


async def test_a_connection_whose_end_was_not_heard_of_does_not_keep_its_own_server_out(
    on_postgres: Catalog, hurried: None
) -> None:
    lost: list[str] = []
    lock = await on_postgres.lock_engine("engine")
    ghost, lock._connection = lock._connection, None  # cut, as far as this side knows
    keeping = asyncio.create_task(lock.keep(lost.append))

    for _ in range(100):
        if lock._connection is not None and lock._session == lock._connection.get_server_pid():
            break
        await asyncio.sleep(0.05)

    keeping.cancel()
    await asyncio.gather(keeping, return_exceptions=True)  # a connection answers one at a time
    assert await lock._is_held() and not lost
    await lock.release()
    ghost.terminate()


async def test_whoever_finds_the_lock_taken_is_told(postgres_url: str, on_postgres: Catalog, hurried: None) -> None:
    lost: list[str] = []
    lock = await on_postgres.lock_engine("first")
    shared_postgres().sql(TERMINATE.format("first"), database=postgres_url)
    other: EngineLock = await on_postgres.lock_engine("second", wait_seconds=10)

    await asyncio.wait_for(lock.keep(lost.append), 30)

    [reason] = lost
    assert "in use by 'second'" in reason
    await lock.release()
    await other.release()


async def test_a_file_beside_the_database_is_the_lock_of_sqlite(tmp_path: Path) -> None:
    async with await Catalog.open(f"sqlite:///{tmp_path}/shared.sqlite3") as catalog:
        lock = await catalog.lock_engine("engine")
        await lock.keep(lambda _: None)  # there is nothing to keep

        assert (tmp_path / "shared.sqlite3.lock").exists()
        await lock.release()
