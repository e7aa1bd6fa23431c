from __future__ import annotations

import asyncio
from datetime import timedelta, timezone
from typing import Any

from chockstone.catalog import Catalog, Use
from support.catalog.making import NOW, after

LATER = after(hours=1)


def use(amount: float = 1.0, **facts: Any) -> Use:
    ordinary: dict[str, Any] = {
        "bucket_start": NOW,
        "owner": "local",
        "session_id": "s",
        "project_id": None,
        "base_model": "Qwen/Qwen3-8B",
        "type": "training",
        "cached": False,
    }
    return Use(**{**ordinary, **facts}, amount=amount)


async def listed(catalog: Catalog, owner: str | None = None) -> tuple[Use, ...]:
    return await catalog.usage.list(owner, start=after(days=-1), end=after(days=1))


async def test_uses_of_one_hour_are_summed(catalog: Catalog) -> None:
    await catalog.usage.add([use(2.0**40), use(1.5, bucket_start=after(minutes=59)), use(4.0, bucket_start=LATER)])
    await catalog.usage.add([use(1.0, bucket_start=NOW.astimezone(timezone(timedelta(minutes=330))))])
    await catalog.usage.add([])

    assert await listed(catalog) == (use(2.0**40 + 2.5), use(4.0, bucket_start=LATER))


async def test_uses_that_differ_in_anything_are_apart(catalog: Catalog) -> None:
    different = [
        use(),
        use(owner="other"),
        use(session_id=None),
        use(session_id="t"),
        use(project_id="p"),
        use(base_model="another"),
        use(type="sampling_prefill"),
        use(type="sampling_prefill", cached=True),
        use(bucket_start=LATER),
    ]

    await catalog.usage.add(different)

    found = await listed(catalog)
    assert len(found) == len(different)
    assert set(found) == set(different)


async def test_uses_added_at_once_are_all_counted(url: str) -> None:
    async with await Catalog.open(url) as one, await Catalog.open(url) as two:
        uses = [use(session_id=str(n)) for n in range(5)]

        await asyncio.gather(*(each.usage.add(uses[:: 1 - 2 * (n % 2)]) for n, each in enumerate([one, two] * 10)))

        assert [found.amount for found in await listed(two)] == [20.0] * 5


async def test_uses_are_listed_by_hour_and_owner(catalog: Catalog) -> None:
    await catalog.usage.add([use(bucket_start=after(hours=n), owner=owner) for n in (2, 0, 1) for owner in ("b", "a")])

    found = await catalog.usage.list(None, start=NOW, end=after(hours=2))

    assert [(each.bucket_start, each.owner) for each in found] == [
        *((NOW, "a"), (NOW, "b"), (LATER, "a"), (LATER, "b")),
    ]
    assert {each.owner for each in await listed(catalog, "a")} == {"a"}


async def test_old_hours_are_trimmed(catalog: Catalog) -> None:
    await catalog.usage.add(use(bucket_start=after(hours=n)) for n in range(3))

    assert await catalog.usage.trim(LATER) == 1
    assert [found.bucket_start for found in await listed(catalog)] == [LATER, after(hours=2)]
