from __future__ import annotations

import asyncio

import pytest

from chockstone.catalog import Catalog, RowMissing, UserRow
from support.catalog.making import NOW, after


async def test_a_user_is_made_once(catalog: Catalog) -> None:
    seen = await asyncio.gather(*(catalog.users.ensure("local", now=after(seconds=n)) for n in range(20)))

    assert len(set(seen)) == 1
    assert await catalog.users.get("local") == seen[0]


async def test_users_are_found_by_id(catalog: Catalog) -> None:
    await catalog.users.ensure("local", now=NOW)

    assert await catalog.users.get("local") == UserRow("local", NOW)
    with pytest.raises(RowMissing, match="'nobody'"):
        await catalog.users.get("nobody")
