from __future__ import annotations

import asyncio

from chockstone.catalog import Catalog, PolicyRow
from support.catalog.making import NOW, after


async def test_a_policy_replaces_the_one_of_its_scope(catalog: Catalog) -> None:
    await catalog.policies.set("global", {"keep_last": 3, "ttl_seconds": 60.5}, by="a", now=NOW)
    await catalog.policies.set("run:s:train:0", {"pinned": ["ä"]}, by="a", now=NOW)

    changed = await catalog.policies.set("global", {"quota_bytes": 2**40}, by="b", now=after(hours=1))

    assert changed == PolicyRow("global", {"quota_bytes": 2**40}, after(hours=1), "b")
    assert await catalog.policies.get("global") == changed
    assert await catalog.policies.list() == (changed, PolicyRow("run:s:train:0", {"pinned": ["ä"]}, NOW, "a"))


async def test_policies_set_at_once_leave_one(catalog: Catalog) -> None:
    policies = catalog.policies

    await asyncio.gather(*(policies.set("user:a", {"keep_last": n}, by=str(n), now=NOW) for n in range(20)))

    [left] = await policies.list()
    assert left.policy == {"keep_last": int(left.changed_by)}


async def test_a_policy_is_removed_once(catalog: Catalog) -> None:
    await catalog.policies.set("global", {}, by="a", now=NOW)

    assert await catalog.policies.remove("global")
    assert not await catalog.policies.remove("global")
    assert await catalog.policies.get("global") is None
