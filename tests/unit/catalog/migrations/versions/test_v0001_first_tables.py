"""The tables of the first version and their rules, as the databases hold them."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import Connection, inspect, text
from sqlalchemy.exc import IntegrityError

from support.catalog.migrations import migrated

SESSION = "INSERT INTO sessions (session_id, owner, tags, user_metadata, sdk_version, created_at, last_heartbeat_at"
MOMENT = "'2030-01-01 12:00:00'"
FIRST = {
    *("users", "sessions", "session_metadata", "runs", "checkpoints", "sampling_sessions", "custom_losses"),
    "alembic_version",
}


def session(connection: Connection, session_id: str, key: str | None = None) -> None:
    values = f"'{session_id}', 'ann', '[]', '{{}}', '1', {MOMENT}, {MOMENT}, {'NULL' if key is None else repr(key)}"
    connection.execute(text(f"{SESSION}, idempotency_key) VALUES ({values})"))


def checkpoint(connection: Connection, state: str, *, name: str = "a") -> None:
    columns = "run_id, kind, name, owner, archive, state, overwrites, size_bytes, created_at, public"
    values = f"'s:train:0', 'weights', '{name}', 'ann', 'x', '{state}', false, 5000000000, {MOMENT}, false"
    more = "user_metadata, base_model, spec, optimizer_config"
    connection.execute(
        text(f"INSERT INTO checkpoints ({columns}, {more}) VALUES ({values}, '{{}}', 'm', '{{}}', '{{}}')")
    )


async def test_the_first_tables(url: str) -> None:
    assert await migrated(url, "0001", lambda connection: set(inspect(connection).get_table_names())) == FIRST


async def test_a_name_has_one_published_checkpoint_and_one_save_under_way(url: str) -> None:
    def work(connection: Connection) -> Any:
        checkpoint(connection, "ready")
        checkpoint(connection, "pending")
        checkpoint(connection, "pending", name="b")
        return connection.execute(text("SELECT save_id FROM checkpoints ORDER BY save_id")).scalars().all()

    assert await migrated(url, "0001", work) == [1, 2, 3]


@pytest.mark.parametrize(("first", "second"), [("ready", "damaged"), ("pending", "pending")])
async def test_a_second_one_of_either_is_refused(url: str, first: str, second: str) -> None:
    def work(connection: Connection) -> None:
        checkpoint(connection, first)
        checkpoint(connection, second)

    with pytest.raises(IntegrityError):
        await migrated(url, "0001", work)


async def test_an_idempotency_key_makes_one_session(url: str) -> None:
    def work(connection: Connection) -> None:
        session(connection, "s")
        session(connection, "t")
        session(connection, "u", "key")
        session(connection, "v", "key")

    with pytest.raises(IntegrityError):
        await migrated(url, "0001", work)


async def test_the_metadata_of_a_session_goes_with_it(url: str) -> None:
    def work(connection: Connection) -> Any:
        session(connection, "s")
        connection.execute(text("INSERT INTO session_metadata (session_id, key, value) VALUES ('s', 'k', 'v')"))
        connection.execute(text("DELETE FROM sessions"))
        return connection.execute(text("SELECT count(*) FROM session_metadata")).scalar()

    assert await migrated(url, "0001", work) == 0
