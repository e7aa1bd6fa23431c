"""What the second version adds, as the databases hold it."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import Connection, inspect, text
from sqlalchemy.exc import IntegrityError

from support.catalog.migrations import migrated

MOMENT = "'2030-01-01 12:00:00'"


def tables_of(connection: Connection) -> set[str]:
    return set(inspect(connection).get_table_names())


def use(connection: Connection, type_of_use: str) -> None:
    columns = "bucket_start, owner, session_id, project_id, base_model, type, cached, amount"
    values = f"{MOMENT}, 'ann', 's', '', 'm', '{type_of_use}', false, 0.5"
    connection.execute(text(f"INSERT INTO usage ({columns}) VALUES ({values})"))


def key(connection: Connection, digest: str) -> None:
    values = f"'ann', '{digest}', 'h', '', {MOMENT}"
    connection.execute(text(f"INSERT INTO keys (user_id, digest, hint, note, created_at) VALUES ({values})"))


async def test_it_adds_tables_and_a_column_and_removes_nothing(url: str) -> None:
    def columns(connection: Connection) -> set[str]:
        return {column["name"] for column in inspect(connection).get_columns("checkpoints")}

    before = await migrated(url, "0001", lambda connection: (tables_of(connection), columns(connection)))
    after = await migrated(url, "0002", lambda connection: (tables_of(connection), columns(connection)))

    assert after[0] - before[0] == {"trash", "policies", "audit", "usage", "keys"}
    assert after[1] - before[1] == {"verified_at"}
    assert before[0] <= after[0] and before[1] <= after[1]


async def test_an_hour_of_use_is_one_row_for_each_type(url: str) -> None:
    def work(connection: Connection) -> Any:
        use(connection, "training")
        use(connection, "storage")
        return connection.execute(text("SELECT sum(amount) FROM usage")).scalar()

    assert await migrated(url, "0002", work) == 1.0
    with pytest.raises(IntegrityError):
        await migrated(url, "0002", lambda connection: use(connection, "training"))


async def test_the_number_of_a_key_that_was_deleted_is_not_used_again(url: str) -> None:
    def work(connection: Connection) -> Any:
        key(connection, "a")
        connection.execute(text("DELETE FROM keys"))
        key(connection, "b")
        return connection.execute(text("SELECT key_id FROM keys")).scalar()

    assert await migrated(url, "0002", work) == 2


async def test_a_key_is_known_once(url: str) -> None:
    def work(connection: Connection) -> None:
        key(connection, "a")
        key(connection, "a")

    with pytest.raises(IntegrityError):
        await migrated(url, "0002", work)
