from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Column, Connection, Table, insert, inspect, select, text, update

from chockstone.catalog import Catalog, CatalogForeign, CatalogNotReady, CatalogTooNew, CatalogUnavailable
from chockstone.catalog import schema as tables
from chockstone.catalog.database import upgrade as opening
from chockstone.catalog.database.database import Database
from support.catalog.making import NOW, begin, make_run, make_session, save
from support.postgres import shared_postgres


async def on(url: str, work: Any, *, writes: bool = True) -> Any:
    database = Database.at(url)
    try:
        return await database.run(lambda connection: connection.run_sync(work), writes=writes)
    finally:
        await database.close()


def describe(connection: Connection) -> dict[str, Any]:
    """All that the database says about its tables, in an order of its own."""
    found = inspect(connection)
    return {
        table: {
            "columns": [{**column, "type": str(column["type"])} for column in found.get_columns(table)],
            "primary key": found.get_pk_constraint(table),
            "references": sorted(found.get_foreign_keys(table), key=str),
            "unique": sorted(found.get_unique_constraints(table), key=str),
            "indexes": sorted(
                ({**index, "dialect_options": options(index)} for index in found.get_indexes(table)),
                key=str,
            ),
        }
        for table in sorted(found.get_table_names())
    }


def options(index: Any) -> dict[str, str]:
    return {name: str(value) for name, value in index.get("dialect_options", {}).items()}


def stored_statements(connection: Connection) -> list[tuple[str, str]]:
    query = text("SELECT name, sql FROM sqlite_master WHERE name NOT LIKE 'sqlite_%' AND name <> 'alembic_version'")
    return sorted((name, " ".join(sql.split())) for name, sql in connection.execute(query))


def clauses(statements: list[tuple[str, str]]) -> dict[str, list[str]]:
    """Statements as the set of what they say: constraints may be written in any order."""
    return {
        name: sorted(sql.replace("(", ",").replace(")", ",").replace(" ", "").split(",")) for name, sql in statements
    }


async def migrate_from_nothing(url: str) -> None:
    await on(url, opening.VERSION_TABLE.create)  # an empty version table: every migration is due
    await (await Catalog.open(url)).close()


def migrate_to(version: str) -> Any:
    def work(connection: Connection) -> None:
        config = Config()
        config.set_main_option("script_location", str(opening.MIGRATIONS))
        config.attributes["connection"] = connection
        command.upgrade(config, version)

    return work


def enter_first_rows(connection: Connection) -> None:
    """What a catalog of the first version may hold, in the columns it has."""
    session = {"session_id": "s", "owner": "local", "tags": ["a"], "user_metadata": {"k": "v"}, "sdk_version": "1"}
    connection.execute(insert(tables.sessions).values(**session, created_at=NOW, last_heartbeat_at=NOW))
    for name, state in (("ready", "ready"), ("broken", "damaged"), ("begun", "pending")):
        checkpoint = {
            "run_id": "s:train:0",
            "kind": "weights",
            "name": name,
            "owner": "local",
            "archive": f"archives/{name}",
            "state": state,
            "overwrites": False,
            "size_bytes": 2**40,
            "created_at": NOW,
            "public": True,
            "user_metadata": {"ä": "ö"},
            "base_model": "Qwen/Qwen3-8B",
            "spec": {"rank": 32},
            "optimizer_config": {},
            "step": 7,
        }
        connection.execute(insert(tables.checkpoints).values(**checkpoint))
    sampler = {"sampling_session_id": "s:sample:0", "session_id": "s", "seq_id": 0, "owner": "local"}
    facts = {"base_model": "Qwen/Qwen3-8B", "archive": "archives/ready", "created_at": NOW, "next_client_counter": 1}
    connection.execute(insert(tables.sampling_sessions).values(**sampler, **facts))


def enter_a_row_in_each_table(connection: Connection) -> None:
    """Of the version before this one."""
    enter_first_rows(connection)
    connection.execute(insert(tables.users).values(user_id="ann", created_at=NOW))
    connection.execute(insert(tables.session_metadata).values(session_id="s", key="k", value="v"))
    run = {"run_id": "s:train:0", "session_id": "s", "model_seq_id": 0, "owner": "ann", "base_model": "m", "spec": {}}
    facts = {"optimizer_config": {}, "user_metadata": {}, "created_at": NOW, "last_request_at": NOW, "state": "active"}
    connection.execute(insert(tables.runs).values(**run, **facts))
    loss = {"loss_id": "s:loss:0", "session_id": "s", "custom_loss_seq_id": 0, "owner": "ann", "name": "l"}
    connection.execute(insert(tables.custom_losses).values(**loss, definition={"a": [1.5]}, created_at=NOW))
    alias = {"owner": "ann", "name": "prod", "revision": 1, "action": "set", "target": "m", "undo_revision": None}
    connection.execute(insert(tables.aliases).values(**alias, changed_at=NOW, changed_by="ann"))
    connection.execute(insert(tables.policies).values(scope="all", policy={}, changed_at=NOW, changed_by="ann"))
    connection.execute(insert(tables.audit).values(event="e", owner="ann", at=NOW, details={"ü": None}))
    key = {"session_id": "s", "project_id": "", "base_model": "m", "type": "training", "cached": False}
    connection.execute(insert(tables.usage).values(bucket_start=NOW, owner="ann", **key, amount=0.5))
    connection.execute(insert(tables.keys).values(user_id="ann", digest="d", hint="h", note="", created_at=NOW))
    bound = {"engine_id": "e", "host": "alpha", "data": "/data", "bound_at": NOW}
    connection.execute(insert(tables.engine).values(**bound))
    numbers = dict.fromkeys(("replayed", "redone", "matched", "mismatched"), 3)
    receipt = {"run_id": "s:train:0", "owner": "ann", "at": NOW, "reason": "r", "skipped": [], "notes": [], **numbers}
    connection.execute(insert(tables.recoveries).values(**receipt, seconds=1.5))
    mark = {"run_id": "s:train:0", "birth": "b", "sequence": 4, "operations": 3}
    connection.execute(insert(tables.journal_marks).values(**mark))
    checkpoint = select(*columns_there(connection, tables.checkpoints)).where(tables.checkpoints.c.name == "broken")
    removed = connection.execute(checkpoint).mappings().one()
    why = {"reason": "deleted", "discarded_at": NOW, "purge_at": NOW}
    connection.execute(insert(tables.trash).values(**removed, **why))


def columns_there(connection: Connection, table: Table) -> list[Column[Any]]:
    """Those of today's columns that a database of an earlier version has."""
    there = {column["name"] for column in inspect(connection).get_columns(table.name)}
    return [column for column in table.columns if column.name in there]


def everything(connection: Connection) -> dict[str, list[dict[str, Any]]]:
    """All rows of our tables that have any, by column."""
    there = inspect(connection).get_table_names()
    found = {
        name: [
            dict(row)
            for row in connection.execute(
                select(*columns_there(connection, table)).order_by(*table.primary_key)
            ).mappings()
        ]
        for name, table in tables.metadata.tables.items()
        if name in there
    }
    return {name: rows for name, rows in found.items() if rows}


def same_columns(before: list[dict[str, Any]], after: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows of ``after``, as far as the earlier version knew their columns."""
    return [{column: row[column] for column in before[0]} for row in after]


async def test_a_catalog_of_the_first_version_keeps_what_it_holds(url: str) -> None:
    await on(url, migrate_to("0001"))
    await on(url, enter_first_rows)

    async with await Catalog.open(url) as catalog:
        ready, broken, begun = [row async for row in catalog.checkpoints.iterate()]
        assert [row.state for row in (ready, broken, begun)] == ["ready", "damaged", "pending"]
        assert (ready.size_bytes, ready.user_metadata, ready.created_at) == (2**40, {"ä": "ö"}, NOW)
        assert (ready.step, ready.public, ready.verified_at) == (7, True, None)
        assert (await catalog.sessions.get("s")).user_metadata == {"k": "v"}
        assert await catalog.samplers.in_use([ready.archive]) == {ready.archive}

        await catalog.checkpoint_saves.commit(begun, size_bytes=5, now=NOW)
        [trashed] = await catalog.checkpoints.discard([ready], reason="deleted", now=NOW, purge_at=NOW)
        assert trashed.checkpoint == ready
        assert (await save(catalog, "new")).save_id > begun.save_id
        assert [row.name for row in await catalog.checkpoints.list_by_run("s:train:0", now=NOW)] == [
            *("new", "begun", "broken")
        ]


async def test_a_catalog_of_the_second_version_learns_of_recoveries(url: str) -> None:
    await on(url, migrate_to("0002"))
    await on(url, enter_first_rows)

    async with await Catalog.open(url) as catalog:
        run = await make_run(catalog)
        added = await catalog.recoveries.add(run_id=run.run_id, owner="local", at=NOW, reason="restarted", seconds=1.5)
        assert await catalog.recoveries.list(run.run_id) == (added,)
        assert await catalog.runs.list_in_state("active") == (run,)


async def test_a_catalog_of_the_version_before_is_brought_up_to_date_with_all_it_holds(url: str) -> None:
    await on(url, migrate_to(opening.VERSIONS[-2]))
    await on(url, enter_a_row_in_each_table)
    before = await on(url, everything, writes=False)
    assert "sampler_gaps" not in before
    assert len(before) == len(tables.metadata.tables) - 2  # all but those that are always empty, or of this version

    async with await Catalog.open(url) as catalog:
        ready = await catalog.checkpoints.get("s:train:0", "weights", "ready", now=NOW)
        assert (ready.size_bytes, ready.seal) == (2**40, None)
        assert [row.lost for row in await catalog.recoveries.list("s:train:0")] == [0]
        assert [key.user_id for key in await catalog.keys.list()] == ["ann"]

    after = await on(url, everything, writes=False)
    assert {table: same_columns(rows, after[table]) for table, rows in before.items()} == before
    assert await on(url, opening._version, writes=False) == opening.VERSIONS[-1]


async def test_an_older_catalog_is_left_to_whoever_may_migrate_it(url: str) -> None:
    with pytest.raises(CatalogNotReady, match="no server has used it yet"):
        await Catalog.look_into(url)
    await on(url, migrate_to(opening.VERSIONS[-2]))

    async with await Catalog.reach(url) as catalog:
        assert await catalog.engine.get() is None
    for refused in (Catalog.look_into(url), Catalog.open(url, may_migrate=False)):
        with pytest.raises(CatalogNotReady, match=f"is of an older version, '{opening.VERSIONS[-2]}'"):
            await refused
    assert await on(url, opening._version, writes=False) == opening.VERSIONS[-2]

    looking = asyncio.create_task(Catalog.look_into(url, wait_seconds=30))
    await asyncio.sleep(0.1)
    await (await Catalog.open(url)).close()
    async with await looking as catalog:
        assert await catalog.keys.list() == ()
    await (await Catalog.open(url, may_migrate=False)).close()


async def test_an_upgrade_that_breaks_off_leaves_the_catalog_as_it_was(url: str) -> None:
    await on(url, migrate_to("0001"))
    await on(url, enter_first_rows)
    await on(url, lambda connection: connection.execute(text("CREATE TABLE keys (a INTEGER)")))  # in the way at the end
    before = await on(url, describe, writes=False)

    with pytest.raises(CatalogUnavailable, match="keys"):
        await Catalog.open(url)

    assert await on(url, describe, writes=False) == before
    await on(url, lambda connection: connection.execute(text("DROP TABLE keys")))
    async with await Catalog.open(url) as catalog:
        assert (await begin(catalog)).state == "pending"
        assert len([row async for row in catalog.checkpoints.iterate()]) == 4


async def test_many_may_upgrade_a_catalog_at_once(url: str) -> None:
    await on(url, migrate_to("0001"))
    await on(url, enter_first_rows)

    catalogs = await asyncio.gather(*(Catalog.open(url) for _ in range(4)))

    for catalog in catalogs:
        assert len([row async for row in catalog.checkpoints.iterate()]) == 3
        await catalog.close()


async def test_migrations_and_tables_agree(url: str, tmp_path: Path) -> None:
    await migrate_from_nothing(url)

    def differences(connection: Connection) -> list[Any]:
        return compare_metadata(MigrationContext.configure(connection, opts={"compare_type": True}), tables.metadata)

    assert await on(url, differences, writes=False) == []


async def test_a_catalog_migrated_on_postgresql_is_what_a_new_one_is() -> None:
    new, migrated = (shared_postgres().create_schema() for _ in range(2))
    await (await Catalog.open(new)).close()
    await migrate_from_nothing(migrated)

    assert await on(migrated, describe, writes=False) == await on(new, describe, writes=False)


async def test_a_migrated_catalog_is_what_a_new_one_is(tmp_path: Path) -> None:
    new, migrated = (f"sqlite:///{tmp_path}/{name}.sqlite3" for name in ("new", "migrated"))
    await (await Catalog.open(new)).close()
    await migrate_from_nothing(migrated)

    assert await on(migrated, describe, writes=False) == await on(new, describe, writes=False)
    assert clauses(await on(migrated, stored_statements, writes=False)) == clauses(
        await on(new, stored_statements, writes=False)
    )


def test_the_known_versions_are_the_migrations_there_are() -> None:
    config = Config()
    config.set_main_option("script_location", str(opening.MIGRATIONS))

    oldest_first = [script.revision for script in ScriptDirectory.from_config(config).walk_revisions()][::-1]

    assert tuple(oldest_first) == opening.VERSIONS


async def test_a_migrated_catalog_works(url: str) -> None:
    await migrate_from_nothing(url)

    async with await Catalog.open(url) as catalog:
        await make_session(catalog)
        assert (await make_run(catalog)).run_id == "s:train:0"


async def test_what_was_returned_is_there_after_a_restart(url: str) -> None:
    async with await Catalog.open(url) as catalog:
        session = await make_session(catalog, user_metadata={"a": "b"})
        run = await make_run(catalog)

    async with await Catalog.open(url) as catalog:
        assert await catalog.sessions.get("s") == session
        assert await catalog.runs.get(run.run_id) == run


def test_what_was_returned_outlives_a_killed_process(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/catalog.sqlite3"
    program = f"""
import asyncio, os, signal
from datetime import UTC, datetime
from chockstone.catalog import Catalog
async def main():
    catalog = await Catalog.open({url!r})
    for n in range(20):
        await catalog.sessions.create(f"s{{n}}", owner="local", sdk_version="1", now=datetime.now(UTC))
    os.kill(os.getpid(), signal.SIGKILL)
asyncio.run(main())
"""
    subprocess.run([sys.executable, "-c", program])

    async def count() -> int:
        async with await Catalog.open(url) as catalog:
            return len(await catalog.sessions.list("local", limit=100))

    assert asyncio.run(count()) == 20


async def test_many_may_open_a_new_database_at_once(url: str) -> None:
    catalogs = await asyncio.gather(*(Catalog.open(url) for _ in range(8)))

    await make_session(catalogs[0])
    for catalog in catalogs:
        assert (await catalog.sessions.get("s")).session_id == "s"
        await catalog.close()


async def test_many_may_migrate_an_old_database_at_once(url: str) -> None:
    await on(url, opening.VERSION_TABLE.create)

    catalogs = await asyncio.gather(*(Catalog.open(url) for _ in range(4)))

    for catalog in catalogs:
        await catalog.close()


async def test_a_creation_that_breaks_off_leaves_nothing(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def break_off(connection: Connection) -> None:
        tables.metadata.create_all(connection)
        raise RuntimeError("broken off")

    with monkeypatch.context() as patch:
        patch.setattr(opening, "_create", break_off)
        with pytest.raises(RuntimeError, match="broken off"):
            await Catalog.open(url)

    assert await on(url, lambda connection: inspect(connection).get_table_names(), writes=False) == []
    await (await Catalog.open(url)).close()


async def test_a_migration_that_breaks_off_leaves_nothing(url: str) -> None:
    def prepare(connection: Connection) -> None:
        opening.VERSION_TABLE.create(connection)
        connection.execute(text("CREATE TABLE custom_losses (a INTEGER)"))  # in the way of the last statement

    await on(url, prepare)

    with pytest.raises(CatalogUnavailable, match="custom_losses"):
        await Catalog.open(url)

    names = await on(url, lambda connection: inspect(connection).get_table_names(), writes=False)
    assert sorted(names) == ["alembic_version", "custom_losses"]


async def test_a_newer_catalog_is_refused_and_left_alone(url: str) -> None:
    await (await Catalog.open(url)).close()
    await on(url, lambda connection: connection.execute(update(opening.VERSION_TABLE).values(version_num="9999")))
    before = await on(url, describe, writes=False)

    with pytest.raises(CatalogTooNew, match="version '9999', which this program does not know"):
        await Catalog.open(url)

    assert await on(url, describe, writes=False) == before


async def test_someone_elses_tables_are_refused(url: str) -> None:
    await on(url, lambda connection: connection.execute(text("CREATE TABLE sessions (a INTEGER)")))

    with pytest.raises(CatalogForeign, match="tables of the same names: sessions"):
        await Catalog.open(url)


async def test_other_tables_are_no_hindrance(url: str) -> None:
    await on(url, lambda connection: connection.execute(text("CREATE TABLE somebodys (a INTEGER)")))

    async with await Catalog.open(url) as catalog:
        await make_session(catalog)


async def test_the_version_is_written_with_the_tables(url: str) -> None:
    await (await Catalog.open(url)).close()

    found = await on(url, lambda connection: connection.execute(opening.VERSION_TABLE.select()).all(), writes=False)

    assert [tuple(row) for row in found] == [(opening.VERSIONS[-1],)]


def test_opening_is_quick_and_does_not_load_alembic(tmp_path: Path) -> None:
    program = f"""
import asyncio, sys, time
from chockstone.catalog import Catalog
async def main():
    for _ in range(2):
        start = time.perf_counter()
        catalog = await Catalog.open("sqlite:///{tmp_path}/catalog.sqlite3")
        print(time.perf_counter() - start)
        await catalog.close()
    print("alembic" in sys.modules, "torch" in sys.modules, "numpy" in sys.modules)
asyncio.run(main())
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    new, again, loaded = ran.stdout.splitlines()
    assert float(again) < 0.3
    assert float(new) < 1.0
    assert loaded == "False False False"


async def test_two_versions_at_once_are_not_guessed_at(url: str) -> None:
    await (await Catalog.open(url)).close()
    await on(url, lambda connection: connection.execute(insert(opening.VERSION_TABLE).values(version_num="0000")))

    with pytest.raises(CatalogTooNew, match="does not know"):
        await Catalog.open(url)
