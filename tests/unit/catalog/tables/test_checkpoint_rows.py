from __future__ import annotations

from chockstone.catalog import Catalog, Usage
from support.catalog.making import NOW, after, begin, save

RUN = "s:train:0"


async def test_usage_is_of_an_owner_a_run_or_all(catalog: Catalog) -> None:
    await save(catalog, "a", size_bytes=2**40)
    await save(catalog, "b", size_bytes=2, run_id="s:train:1")
    await save(catalog, "c", size_bytes=4, owner="other")

    assert await catalog.checkpoints.usage(now=NOW) == Usage(3, 2**40 + 6)
    assert await catalog.checkpoints.usage(now=NOW, owner="local") == Usage(2, 2**40 + 2)
    assert await catalog.checkpoints.usage(now=NOW, run_id="s:train:1") == Usage(1, 2)
    assert await catalog.checkpoints.usage(now=NOW, owner="other", run_id="s:train:1") == Usage(0, 0)


async def test_usage_is_summed_by_owner_and_by_run(catalog: Catalog) -> None:
    await save(catalog, "a", size_bytes=2**40)
    await save(catalog, "b", size_bytes=2, run_id="s:train:1")
    await save(catalog, "c", size_bytes=4, owner="other")
    await save(catalog, "old", size_bytes=8, owner="gone", expires_at=after(hours=1))
    await begin(catalog, "unfinished", size_bytes=16)
    now = after(hours=1)

    assert await catalog.checkpoints.usage_by_owner(now) == {
        "local": Usage(2, 2**40 + 2),
        "other": Usage(1, 4),
    }
    assert await catalog.checkpoints.usage_by_run(now) == {RUN: Usage(2, 2**40 + 4), "s:train:1": Usage(1, 2)}
    assert await catalog.checkpoints.usage_by_run(now, "other") == {RUN: Usage(1, 4)}
    assert await catalog.checkpoints.usage_by_run(now, owner="nobody") == {}
    held = await catalog.checkpoints.holdings(now)
    assert sorted((each.run_id, each.owner) for each in held) == [
        (RUN, "local"),
        (RUN, "other"),
        ("s:train:1", "local"),
    ]
    assert [each.archive for each in held] == [
        row.archive async for row in catalog.checkpoints.iterate() if row.name in "abc"
    ]
