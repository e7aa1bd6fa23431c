"""What only a database server can do to a catalog: go away, come back, refuse, and be shared."""

from __future__ import annotations

import asyncio
import logging
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from chockstone.catalog import Catalog, CatalogAway, CatalogUnavailable
from chockstone.catalog.database import retry
from chockstone.catalog.database.database import Database
from chockstone.catalog.database.retry import waiting_for_catalog
from support.catalog.cutting_proxy import cutting_proxy
from support.catalog.making import NOW, begin, make_run, make_session
from support.postgres import PASSWORD, PostgresServer, shared_postgres, stoppable_postgres

TERMINATE = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'chockstone'"


@pytest.fixture
def own() -> PostgresServer:
    """A server that may be stopped."""
    return stoppable_postgres()


@pytest.fixture
def server() -> PostgresServer:
    return shared_postgres()


@pytest.fixture
def url(server: PostgresServer) -> str:
    return server.create_database()


@pytest.fixture
async def catalog(url: str) -> AsyncIterator[Catalog]:
    async with await Catalog.open(url) as catalog:
        await make_session(catalog)
        yield catalog


@pytest.fixture
def short_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "_RETRY_SECONDS", 0.1)


async def refused(url: str) -> str:
    with pytest.raises(CatalogUnavailable) as caught:
        await Catalog.open(url)
    texts = [str(error) for error in chain(caught.value)]
    assert not any(part in text for text in texts for part in (PASSWORD, "s3cret")), texts
    return str(caught.value)


def chain(error: BaseException | None) -> Iterator[BaseException]:
    """All that a traceback would show."""
    while error is not None:
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


async def test_refusals_say_what_to_do_and_never_the_password(
    server: PostgresServer, url: str, short_retries: None
) -> None:
    database = url.rpartition("/")[2]
    server.sql("CREATE ROLE guest LOGIN PASSWORD 's3cret'")

    assert "check the user and the password" in await refused(server.url(database, password="s3cret"))
    assert "CREATE DATABASE" in await refused(server.url("absent"))
    assert "ALTER DATABASE name OWNER TO role" in await refused(server.url(database, role="guest", password="s3cret"))
    assert "stopped database server" in await refused(f"postgresql://me:{PASSWORD[:6]}@127.0.0.1:1/db")
    for unquoted in ("s3cret/x@127.0.0.1", "s3cret?@127.0.0.1", "s3cret#:@127.0.0.1", "s3cret:x/@127.0.0.1"):
        await refused(f"postgresql://me:{unquoted}/db")
    assert "%2F" in await refused("postgresql://me:s3cret/x@127.0.0.1/db")
    assert "sslmode" in await refused(f"{url}?sslmode=s3ure")
    assert "No such file" in await refused(f"{url}?sslmode=verify-full&sslrootcert=/absent")


async def test_passwords_are_shown_nowhere(server: PostgresServer, url: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    name = url.rpartition("/")[2]

    async with await Catalog.open(url) as catalog:
        await make_session(catalog)
        assert f"postgresql://chockstone:***@127.0.0.1:{server.port}/{name}" == catalog.shown_url
    in_query = f"postgresql://127.0.0.1:{server.port}/{name}?user=chockstone&password=s3cret"
    with pytest.raises(CatalogUnavailable) as caught:
        await Catalog.open(in_query)

    assert "password=***" in str(caught.value)
    assert "s3cret" not in str(caught.value) + caplog.text


async def test_urls_of_all_forms_reach_it(server: PostgresServer, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, port = url.rpartition("/")[2], server.port
    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    forms = [
        url.replace("postgresql:", "postgres:"),
        server.socket_url(name),
        f"postgresql://chockstone@127.0.0.1:{port}/{name}",
        f"postgresql://chockstone@127.0.0.1:1,127.0.0.1:{port}/{name}?target_session_attrs=read-write",
        f"{url}?sslmode=prefer&application_name=mine",
    ]

    for form in forms:
        async with await Catalog.open(form) as catalog:
            await catalog.users.ensure("ann", now=NOW)


async def test_two_catalogs_may_be_in_one_database(server: PostgresServer, url: str) -> None:
    server.sql("CREATE SCHEMA other AUTHORIZATION chockstone", database=url)

    async with await Catalog.open(url) as one, await Catalog.open(f"{url}?search_path=other") as other:
        await make_session(one)
        assert await other.sessions.list("local", limit=10) == ()
        async with await Catalog.open(f"{url}?search_path=other") as again:
            await make_session(again)
            assert await other.sessions.get("s")


async def test_tls_is_as_the_url_says(own: PostgresServer, tmp_path: Path) -> None:
    certificate, key = own.make_certificate("localhost")
    own.stop()
    own.start(ssl="on", ssl_cert_file=str(certificate), ssl_key_file=str(key))
    url = own.create_database().replace("@127.0.0.1:", "@localhost:")
    is_encrypted = text("SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()")
    (tmp_path / "root.crt").write_bytes(certificate.read_bytes())

    found = {}
    for mode in ("disable", "require", f"verify-full&sslrootcert={tmp_path}/root.crt"):
        database = Database.at(f"{url}?sslmode={mode}")
        [[found[mode.partition("&")[0]]]] = await database.read(is_encrypted)
        await database.close()

    assert found == {"disable": False, "require": True, "verify-full": True}
    by_address = url.replace("@localhost:", "@127.0.0.1:")
    assert "certificate" in await refused(f"{by_address}?sslmode=verify-full&sslrootcert={tmp_path}/root.crt")


async def test_cut_connections_are_noticed_by_nobody(server: PostgresServer, catalog: Catalog) -> None:
    for number in range(3):
        await asyncio.gather(*(catalog.sessions.get("s") for _ in range(10)))  # many connections are open
        server.sql(TERMINATE)

        run = await make_run(catalog, model_seq_id=number)
        assert await catalog.runs.get(run.run_id) == run


async def test_connections_cut_all_the_time_cost_nothing(server: PostgresServer, catalog: Catalog) -> None:
    is_over = False

    async def cut() -> None:
        while not is_over:
            await asyncio.to_thread(server.sql, TERMINATE)

    cutting = asyncio.create_task(cut())
    with waiting_for_catalog(is_over=lambda: False):
        made = [await asyncio.gather(*(make_run(catalog, model_seq_id=10 * n + k) for k in range(4))) for n in range(4)]
    is_over = True
    await cutting

    listed = await catalog.runs.list("local", limit=100)
    assert listed.total_count == sum(map(len, made)) == 16


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGQUIT])
async def test_a_server_that_is_stopped_and_started_again_is_waited_for(
    own: PostgresServer, how: signal.Signals, short_retries: None
) -> None:
    told: list[str | None] = []
    async with await Catalog.open(own.create_database()) as catalog:
        session = await make_session(catalog)
        own.stop(how)

        with pytest.raises(CatalogAway, match="stopped database server"):
            await make_session(catalog, "unheard")
        with waiting_for_catalog(is_over=lambda: False, on_wait=told.append):
            waiting = asyncio.create_task(make_run(catalog))
        await asyncio.sleep(2.5)
        assert not waiting.done()
        own.start()

        assert (await waiting).session_id == "s"
        assert told[0] is not None and "cannot be used" in told[0]
        assert told[-1] is None
        assert await catalog.sessions.get("s") == session
        assert len(await catalog.sessions.list("local", limit=10)) == 1


async def test_waiting_ends_when_it_is_told(own: PostgresServer) -> None:
    async with await Catalog.open(own.create_database()) as catalog:
        own.stop()
        try:
            with waiting_for_catalog(is_over=lambda: True), pytest.raises(CatalogAway):
                await make_session(catalog)
        finally:
            own.start()


async def test_a_server_that_is_not_there_yet_is_waited_for(own: PostgresServer) -> None:
    url = own.create_database()
    own.stop()

    reaching = asyncio.create_task(Catalog.reach(url, wait_seconds=30))
    await asyncio.sleep(0.3)
    own.start()

    async with await reaching as catalog:
        assert await catalog.engine.get() is None
        await catalog.bring_up_to_date()
        await make_session(catalog)


async def test_a_database_that_is_read_only_for_a_while_costs_waiting(
    server: PostgresServer, url: str, catalog: Catalog, short_retries: None
) -> None:
    name = url.rpartition("/")[2]
    server.sql(f"ALTER DATABASE {name} SET default_transaction_read_only = on", TERMINATE)

    assert (await catalog.sessions.get("s")).session_id == "s"
    with pytest.raises(CatalogAway, match="read-only"):
        await make_run(catalog)
    with waiting_for_catalog(is_over=lambda: False):
        waiting = asyncio.create_task(make_run(catalog))
    await asyncio.sleep(0.1)
    server.sql(f"ALTER DATABASE {name} RESET default_transaction_read_only")

    assert (await waiting).run_id == "s:train:0"


async def test_too_many_connections_cost_waiting(server: PostgresServer, url: str, short_retries: None) -> None:
    name = url.rpartition("/")[2]
    await (await Catalog.open(url)).close()
    server.sql(f"ALTER DATABASE {name} CONNECTION LIMIT 0")

    assert "raise max_connections" in await refused(url)
    opening = asyncio.create_task(Catalog.look_into(url, wait_seconds=30))
    await asyncio.sleep(0.1)
    server.sql(f"ALTER DATABASE {name} CONNECTION LIMIT -1")

    await (await opening).close()


async def test_one_process_takes_no_more_connections_than_it_says(server: PostgresServer, catalog: Catalog) -> None:
    await asyncio.gather(*(catalog.sessions.get("s") for _ in range(50)))

    name = catalog.shown_url.rpartition("/")[2]
    assert int(server.sql(f"SELECT count(*) FROM pg_stat_activity WHERE datname = '{name}'")) <= 8


async def test_a_conflict_of_transactions_is_tried_again(url: str) -> None:
    database = Database.at(url)
    attempts: list[int] = []

    async def work(connection: AsyncConnection) -> int:
        attempts.append(1)
        if len(attempts) < 3:
            await connection.execute(text("DO $$ BEGIN RAISE EXCEPTION 'deadlock' USING ERRCODE = '40P01'; END $$"))
        return len(attempts)

    assert await database.run(work, writes=True) == 3
    await database.close()


async def test_a_commit_without_an_answer_is_not_repeated_unasked(url: str) -> None:
    await (await Catalog.open(url)).close()
    async with cutting_proxy(url) as proxy, await Catalog.open(proxy.url) as catalog:
        proxy.cuts = 1
        with pytest.raises(CatalogAway) as caught:
            await make_session(catalog)

        assert caught.value.may_be_done
        assert (await catalog.sessions.get("s")).session_id == "s"  # it was


async def test_a_save_whose_commits_lose_their_answers_is_made_once(url: str) -> None:
    await (await Catalog.open(url)).close()
    async with cutting_proxy(url) as proxy, await Catalog.open(proxy.url) as catalog:
        proxy.cuts = 2
        with waiting_for_catalog(is_over=lambda: False):
            begun = await begin(catalog)
            proxy.cuts += 2
            committed = await catalog.checkpoint_saves.commit(begun, size_bytes=7, now=NOW)

        assert (proxy.cuts, proxy.done) == (0, 4)
        assert (committed.checkpoint.state, committed.checkpoint.save_id) == ("ready", begun.save_id)
        assert [row.name async for row in catalog.checkpoints.iterate()] == ["final"]


async def test_a_statement_that_takes_for_ever_is_given_up(
    url: str, monkeypatch: pytest.MonkeyPatch, short_retries: None
) -> None:
    monkeypatch.setattr("chockstone.catalog.database.postgres._STATEMENT_SECONDS", 0.2)
    database = Database.at(url)
    try:
        with pytest.raises(CatalogAway):
            await database.read(text("SELECT pg_sleep(60)"))
        assert await database.read(text("SELECT 1")) == [(1,)]

        async with database.unhurried() as unhurried:
            await unhurried.read(text("SELECT pg_sleep(0.5)"))
    finally:
        await database.close()


PROGRAM = """
import asyncio, sys
from datetime import UTC, datetime
from chockstone.catalog import Catalog, CheckpointRowExists
async def main():
    won = 0
    async with await Catalog.open(sys.argv[1]) as catalog:
        print("ready", flush=True)
        sys.stdin.readline()
        for n in range(15):
            try:
                row = await catalog.checkpoint_saves.begin(
                    "s:train:0", "weights", f"c{n}", archive=f"{sys.argv[2]}-{n}", owner="ann", base_model="m", spec={},
                    now=datetime.now(UTC))
            except CheckpointRowExists:
                continue
            await catalog.checkpoint_saves.commit(row, size_bytes=1, now=datetime.now(UTC))
            won += 1
    print(won)
asyncio.run(main())
"""


async def test_of_many_processes_one_gets_a_name(url: str) -> None:
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, url, str(n)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for n in range(3)
    ]  # none has made the tables before
    for process in processes:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
    won = [int(process.communicate("go\n", timeout=60)[0]) for process in processes]

    async with await Catalog.open(url) as catalog:
        names = [row.name async for row in catalog.checkpoints.iterate()]
    assert sum(won) == len(names) == len(set(names)) == 15


async def test_looking_into_a_catalog_changes_nothing(server: PostgresServer, url: str) -> None:
    assert not await Catalog.exists(url)
    with pytest.raises(CatalogUnavailable, match="is no catalog"):
        await Catalog.look_into(url)
    assert server.sql(r"SELECT count(*) FROM pg_tables WHERE schemaname = 'public'", database=url) == "0"

    async with await Catalog.open(url) as catalog:
        await make_session(catalog)
    assert await Catalog.exists(url)
    async with await Catalog.look_into(f"{url}?target_session_attrs=read-write") as catalog:
        assert (await catalog.sessions.get("s")).session_id == "s"
        with waiting_for_catalog(is_over=lambda: True), pytest.raises(CatalogAway, match="read-only"):
            await make_session(catalog, "t")

    server.sql("UPDATE alembic_version SET version_num = '0003'", database=url)
    with pytest.raises(CatalogUnavailable, match="of an older version, '0003'"):
        await Catalog.look_into(url)


async def test_a_wait_is_short_unless_it_was_asked_for(own: PostgresServer, short_retries: None) -> None:
    url = own.create_database()
    own.stop()
    try:
        started = time.monotonic()
        await refused(url)
        assert time.monotonic() - started < 10
    finally:
        own.start()
