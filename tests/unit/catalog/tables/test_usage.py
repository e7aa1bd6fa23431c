from __future__ import annotations

import asyncio
from datetime import timedelta, timezone
from typing import Any

import pytest

from chockstone.catalog import Catalog, CatalogError, JournalUses, UsagePosition, Use
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


def journal(*uses: tuple[int, float], source: str = "s:train:0", birth: str = "b", through: int = 0) -> JournalUses:
    """Uses of these positions and amounts."""
    return JournalUses(source, birth, through, [(position, [use(amount)]) for position, amount in uses])


async def total(catalog: Catalog) -> float:
    return sum(found.amount for found in await listed(catalog))


async def test_a_use_of_a_journal_that_is_added_again_counts_once(catalog: Catalog) -> None:
    await catalog.usage.add([], [journal((5, 5), (12, 7))])
    await catalog.usage.add([], [journal((5, 5), (12, 7))])
    await catalog.usage.add([use(100)], [journal((12, 7), (20, 8), (12, 7), (20, 8), through=9)])

    assert await total(catalog) == 120
    assert await catalog.usage.position("s:train:0") == UsagePosition("s:train:0", "b", 20, 9)


async def test_journals_of_other_sources_and_births_are_counted_apart(catalog: Catalog) -> None:
    await catalog.usage.add([], [journal((5, 5)), journal((4, 4), source="samples")])
    await catalog.usage.add([], [journal((3, 3), birth="c"), journal((4, 4), source="samples")])

    assert await total(catalog) == 12
    assert await catalog.usage.position("s:train:0") == UsagePosition("s:train:0", "c", 3, 0)
    assert await catalog.usage.position("samples") == UsagePosition("samples", "b", 4, 0)


async def test_several_uses_of_one_position_are_all_counted(catalog: Catalog) -> None:
    await catalog.usage.add([], [JournalUses("samples", "b", 3, [(3, [use(1), use(2, type="sampling_sample")])])])

    assert await total(catalog) == 3


async def test_a_position_moves_with_its_amounts_or_not_at_all(catalog: Catalog) -> None:
    unstorable = JournalUses("s:train:0", "b", 1, [(5, [use(5, owner="\ud800")])])

    with pytest.raises(CatalogError):
        await catalog.usage.add([], [unstorable])

    assert await catalog.usage.position("s:train:0") is None
    assert await total(catalog) == 0


async def test_a_journal_without_new_uses_moves_what_has_ended(catalog: Catalog) -> None:
    await catalog.usage.add([], [journal((5, 5), through=2)])
    await catalog.usage.add([], [journal(through=4)])

    assert await catalog.usage.position("s:train:0") == UsagePosition("s:train:0", "b", 5, 4)


async def test_a_forgotten_journal_has_no_position(catalog: Catalog) -> None:
    await catalog.usage.add([], [journal((5, 5))])

    await catalog.usage.forget("s:train:0")

    assert await catalog.usage.position("s:train:0") is None
    assert await total(catalog) == 5
