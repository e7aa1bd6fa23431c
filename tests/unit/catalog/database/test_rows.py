from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

import pytest

from chockstone.catalog import Catalog
from chockstone.catalog import schema as tables
from chockstone.catalog.database.rows import RowMapper, upsert
from support.catalog.making import NOW, after


@dataclass(frozen=True)
class User:
    user_id: str
    created_at: datetime


USERS = RowMapper(User, tables.users)


async def test_a_row_is_created_once_and_found_by_its_key(catalog: Catalog) -> None:
    first = await USERS.create_once(catalog._database, user_id="ann", created_at=NOW)
    again = await USERS.create_once(catalog._database, user_id="ann", created_at=after(hours=1))

    assert first == again == User("ann", NOW)
    assert await USERS.find(catalog._database, tables.users.c.user_id == "bob") is None


async def test_a_page_knows_how_many_rows_there_are(catalog: Catalog) -> None:
    await upsert(
        catalog._database,
        tables.users,
        [{"user_id": f"u{n}", "created_at": NOW} for n in range(5)],
        replace=("created_at",),
    )
    order = (tables.users.c.user_id,)

    page = await USERS.read_page(catalog._database, order_by=order, limit=2, offset=2)
    behind = await USERS.read_page(catalog._database, order_by=order, limit=2, offset=9)

    assert ([row.user_id for row in page.rows], page.total_count) == (["u2", "u3"], 5)
    assert (behind.rows, behind.total_count) == ((), 5)


async def test_a_time_is_only_moved_forward(catalog: Catalog) -> None:
    await USERS.create_once(catalog._database, user_id="ann", created_at=NOW)
    column = tables.users.c.created_at

    for moment in (after(hours=1), NOW):
        await USERS.touch_many(
            catalog._database, tables.users.c.user_id, column, {"ann": moment, "nobody": after(hours=9)}
        )

    assert await USERS.find(catalog._database, tables.users.c.user_id == "ann") == User("ann", after(hours=1))


@pytest.mark.parametrize("times", [1, 3])
async def test_an_upsert_replaces_the_named_columns(catalog: Catalog, times: int) -> None:
    for n in range(times):
        row = {"user_id": "ann", "created_at": after(hours=n)}
        await upsert(catalog._database, tables.users, [row], replace=("created_at",))

    assert await USERS.find(catalog._database, tables.users.c.user_id == "ann") == User("ann", after(hours=times - 1))
