from __future__ import annotations

import asyncio
from typing import Any

from chockstone.catalog import Catalog, RecoveryRow
from chockstone.catalog.tables.recoveries import KEPT
from support.catalog.making import NOW, after


async def add(catalog: Catalog, run_id: str = "s:train:0", **facts: Any) -> RecoveryRow:
    return await catalog.recoveries.add(
        **{"run_id": run_id, "owner": "local", "at": NOW, "reason": "the server was restarted", **facts}
    )


async def test_a_receipt_comes_back_as_it_was_written(catalog: Catalog) -> None:
    added = await add(
        catalog,
        archive="s.train.0/recovery/0000000000000007.ab",
        skipped=[{"archive": "s.train.0/recovery/0000000000000009.cd", "reason": "a digest differs"}],
        replayed=12,
        redone=1,
        matched=11,
        mismatched=1,
        seconds=0.25,
        notes=["the device is another one"],
    )

    assert await catalog.recoveries.list("s:train:0") == (added,)
    assert added == RecoveryRow(
        recovery_id=added.recovery_id,
        run_id="s:train:0",
        owner="local",
        at=NOW,
        reason="the server was restarted",
        archive="s.train.0/recovery/0000000000000007.ab",
        skipped=[{"archive": "s.train.0/recovery/0000000000000009.cd", "reason": "a digest differs"}],
        replayed=12,
        redone=1,
        matched=11,
        mismatched=1,
        seconds=0.25,
        notes=["the device is another one"],
    )


async def test_a_run_from_before_its_first_archive_has_none(catalog: Catalog) -> None:
    added = await add(catalog)

    assert (added.archive, added.skipped, added.notes, added.replayed) == (None, [], [], 0)


async def test_receipts_are_newest_first_even_if_the_clock_was_set_back(catalog: Catalog) -> None:
    for n in range(4):
        await add(catalog, replayed=n, at=after(seconds=-n))
    await add(catalog, "s:train:1", replayed=9)

    assert [row.replayed for row in await catalog.recoveries.list("s:train:0", limit=3)] == [3, 2, 1]
    assert [row.replayed for row in await catalog.recoveries.list("s:train:1")] == [9]
    assert await catalog.recoveries.list("s:train:2") == ()


async def test_the_oldest_receipts_of_a_run_are_forgotten(catalog: Catalog) -> None:
    other = await add(catalog, "s:train:1")
    for n in range(KEPT + 5):
        await add(catalog, replayed=n)

    kept = await catalog.recoveries.list("s:train:0", limit=2 * KEPT)

    assert [row.replayed for row in kept] == list(range(KEPT + 4, 4, -1))
    assert await catalog.recoveries.list("s:train:1") == (other,)


async def test_receipts_written_at_once_are_all_kept(catalog: Catalog) -> None:
    added = await asyncio.gather(*(add(catalog, replayed=n) for n in range(20)))

    kept = await catalog.recoveries.list("s:train:0")

    assert {row.replayed for row in kept} == set(range(20))
    assert {row.recovery_id for row in kept} == {row.recovery_id for row in added}


async def test_recoveries_of_all_runs_are_found_newest_first(catalog: Catalog) -> None:
    for number in range(3):
        await catalog.recoveries.add(
            run_id=f"s:train:{number}", owner="bob" if number else "ann", at=NOW, reason=str(number), mismatched=number
        )

    every = await catalog.recoveries.search(None, limit=10)

    assert [row.reason for row in every] == ["2", "1", "0"]
    assert await catalog.recoveries.search(None, before=every[0].recovery_id, limit=1) == every[1:2]
    assert await catalog.recoveries.search("ann", limit=10) == every[2:]
    assert await catalog.recoveries.search(None, run_id="s:train:1", limit=10) == every[1:2]
    assert await catalog.recoveries.list_differing(since=NOW, per_owner=10, limit=10) == every[:2]


async def test_the_recoveries_of_one_owner_do_not_crowd_out_those_of_another(catalog: Catalog) -> None:
    for number, owner in enumerate(("ann", "bob", "bob", "bob")):
        await catalog.recoveries.add(run_id=f"s:train:{number}", owner=owner, at=NOW, reason=str(number), mismatched=1)

    found = await catalog.recoveries.list_differing(since=NOW, per_owner=2, limit=10)

    assert [row.reason for row in found] == ["3", "2", "0"]
    assert await catalog.recoveries.list_differing(since=NOW, per_owner=2, limit=1) == found[:1]
