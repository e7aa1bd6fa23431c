from __future__ import annotations

import asyncio

import pytest

from chockstone.catalog import Catalog, KeyRow, RowExists
from support.catalog.making import NOW, after


async def active(catalog: Catalog) -> dict[str, str]:
    """The user of each valid key, by its digest."""
    return {key.digest: key.user_id for key in await catalog.keys.list() if not key.is_revoked}


async def test_a_key_is_valid_until_it_is_revoked(catalog: Catalog) -> None:
    first = await catalog.keys.add("ada", "d1", hint="abcd", note="laptop", now=NOW)
    second = await catalog.keys.add("ada", "d2", hint="efgh", now=NOW)
    third = await catalog.keys.add("bob", "d3", hint="ijkl", now=NOW)

    assert first == KeyRow(first.key_id, "ada", "d1", "abcd", "laptop", NOW, None)
    assert await active(catalog) == {"d1": "ada", "d2": "ada", "d3": "bob"}
    assert await catalog.keys.revoke(second.key_id, now=after(hours=1))
    assert await active(catalog) == {"d1": "ada", "d3": "bob"}
    revoked = KeyRow(second.key_id, "ada", "d2", "efgh", "", NOW, after(hours=1))
    assert await catalog.keys.list() == (first, revoked, third)
    assert (first.is_revoked, revoked.is_revoked) == (False, True)


async def test_a_key_is_revoked_once(catalog: Catalog) -> None:
    key = await catalog.keys.add("ada", "d", hint="abcd", now=NOW)

    revoked = await asyncio.gather(*(catalog.keys.revoke(key.key_id, now=after(hours=n)) for n in range(8)))

    assert sorted(revoked) == [False] * 7 + [True]
    assert not await catalog.keys.revoke(key.key_id + 1, now=NOW)


async def test_a_key_is_added_once_even_when_revoked(catalog: Catalog) -> None:
    key = await catalog.keys.add("ada", "d", hint="abcd", now=NOW)
    await catalog.keys.revoke(key.key_id, now=NOW)

    with pytest.raises(RowExists, match="the key that ends in 'abcd'"):
        await catalog.keys.add("bob", "d", hint="abcd", now=NOW)

    assert await active(catalog) == {}
