from __future__ import annotations

import asyncio
import sqlite3
import sys
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from chockstone.catalog import Catalog, CatalogUnavailable, SessionQuery, UnstorableColumnValue
from chockstone.catalog.database.database import Database
from chockstone.telemetry.instruments import Instruments
from support.catalog.making import NOW, after, make_run, make_session
from support.exposition import series_of


async def test_every_sqlite_connection_has_its_pragmas(tmp_path: Path) -> None:
    database = Database.at(f"sqlite:///{tmp_path}/catalog.sqlite3")

    async def pragmas(connection: AsyncConnection) -> list[object]:
        await asyncio.sleep(0.01)  # so that each has a connection of its own
        names = ("journal_mode", "synchronous", "foreign_keys", "busy_timeout")
        return [(await connection.execute(text(f"PRAGMA {name}"))).scalar_one() for name in names]

    found = await asyncio.gather(*(database.run(pragmas, writes=False) for _ in range(4)))
    assert found == [["wal", 1, 1, 10000]] * 4
    await database.close()


async def test_a_missing_directory_is_said(tmp_path: Path) -> None:
    with pytest.raises(CatalogUnavailable, match="missing directory"):
        await Catalog.open(f"sqlite:///{tmp_path}/absent/catalog.sqlite3")


async def test_a_file_that_is_no_database_is_said(tmp_path: Path) -> None:
    (tmp_path / "catalog.sqlite3").write_bytes(b"not a database, but long enough to be read as one" * 50)

    with pytest.raises(CatalogUnavailable, match="not a database"):
        await Catalog.open(f"sqlite:///{tmp_path}/catalog.sqlite3")


@pytest.mark.parametrize(
    "url", ["mysql://host/db", "sqlite+pysqlite:///x", "oracle://", "sqlite://", "sqlite:///:memory:"]
)
async def test_other_databases_are_refused(url: str) -> None:
    with pytest.raises(CatalogUnavailable, match="use sqlite:///PATH or postgresql://"):
        await Catalog.open(url)


async def test_an_unreadable_url_is_refused_without_its_password() -> None:
    with pytest.raises(CatalogUnavailable, match="cannot be read") as refusal:
        await Catalog.open("postgresql//me:secret@host/db")

    assert "secret" not in str(refusal.value)


async def test_a_server_that_is_not_there_is_said_without_its_password() -> None:
    pytest.importorskip("asyncpg")

    with pytest.raises(CatalogUnavailable, match="stopped database server") as refusal:
        await Catalog.open("postgresql://me:secret@127.0.0.1:1/db")

    assert "secret" not in str(refusal.value)


async def test_a_missing_driver_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "asyncpg", None)

    with pytest.raises(CatalogUnavailable, match="pip install 'chockstone\\[postgres\\]'"):
        await Catalog.open("postgresql://host/db")


async def test_calls_given_up_half_way_are_done_whole_and_hold_nothing(url: str) -> None:
    catalog = await Catalog.open(url)
    for delay in range(0, 30, 2):
        names = [f"s{delay}-{n}" for n in range(4)]
        calls = [asyncio.create_task(make_session(catalog, name, user_metadata={"a": "b"})) for name in names]
        reads = [asyncio.create_task(catalog.sessions.list("local", limit=100)) for _ in range(2)]
        await asyncio.sleep(delay / 5000)
        for call in [*calls, *reads]:
            call.cancel()
        await asyncio.gather(*calls, *reads, return_exceptions=True)

    await asyncio.wait_for(make_session(catalog, "after"), timeout=5)
    await catalog.close()  # waits for those still under way

    async with await Catalog.open(url) as catalog:
        made = await catalog.sessions.search(SessionQuery(limit=200), now=NOW)
        indexed = await catalog.sessions.search(SessionQuery(user_metadata={"a": "b"}, limit=200), now=NOW)
    assert len(made.sessions) == len(indexed.sessions) + 1 > 1


async def test_closing_waits_for_what_is_under_way(url: str) -> None:
    catalog = await Catalog.open(url)
    call = asyncio.create_task(make_session(catalog))
    await asyncio.sleep(0)  # it has begun
    call.cancel()
    await catalog.close()

    async with await Catalog.open(url) as catalog:
        assert (await catalog.sessions.get("s")).session_id == "s"


async def test_readers_go_on_while_many_write(catalog: Catalog) -> None:
    await make_session(catalog)

    runs, sessions = await asyncio.gather(
        asyncio.gather(*(make_run(catalog, model_seq_id=n) for n in range(60))),
        asyncio.gather(*(catalog.sessions.get("s") for _ in range(60))),
    )

    assert len({run.run_id for run in runs}) == 60
    assert {session.session_id for session in sessions} == {"s"}


async def test_another_process_that_writes_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "catalog.sqlite3"
    async with await Catalog.open(f"sqlite:///{path}") as catalog:
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")

        waiting = asyncio.create_task(make_session(catalog))
        await asyncio.sleep(0.1)
        assert not waiting.done()
        other.execute("COMMIT")
        other.close()

        assert (await waiting).session_id == "s"


async def test_a_waiting_writer_does_not_hold_the_loop(tmp_path: Path) -> None:
    path = tmp_path / "catalog.sqlite3"
    async with await Catalog.open(f"sqlite:///{path}") as catalog:
        await make_session(catalog)
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")

        waiting = asyncio.create_task(catalog.sessions.touch_many({"s": after(seconds=1)}))
        session = await asyncio.wait_for(catalog.sessions.get("s"), timeout=2)
        other.execute("ROLLBACK")
        other.close()
        await waiting

        assert session.last_heartbeat_at == NOW


@pytest.mark.parametrize("name", ["\ud800", "nul \x00 inside"])
async def test_text_is_kept_exactly_or_refused(catalog: Catalog, name: str) -> None:
    try:
        made = await make_session(catalog, display_name=name, user_metadata={name: name})
    except UnstorableColumnValue:
        return

    assert (made.display_name, made.user_metadata) == (name, {name: name})


async def test_transactions_are_measured_and_failures_counted(tmp_path: Path) -> None:
    instruments = Instruments()
    database = Database.at(f"sqlite:///{tmp_path}/catalog.sqlite3", instruments=instruments)
    await database.write(text("CREATE TABLE things (name TEXT)"))
    await database.read(text("SELECT * FROM things"))
    with pytest.raises(CatalogUnavailable):
        await database.read(text("SELECT * FROM absent"))
    await database.close()

    found = series_of(instruments.render())
    assert found['chockstone_catalog_seconds_count{access="write"}'] == 1
    assert found['chockstone_catalog_seconds_count{access="read"}'] == 2
    assert found["chockstone_catalog_failures_total"] == 1
