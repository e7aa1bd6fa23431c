from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest

from chockstone.catalog import Catalog, CheckpointRow, CheckpointRowExists, RowMissing, TrashRow, Usage
from support.catalog.making import NOW, after, begin, save

RUN = "s:train:0"
LATER = after(hours=1)


async def discard(catalog: Catalog, *rows: CheckpointRow, **facts: Any) -> tuple[TrashRow, ...]:
    return await catalog.checkpoints.discard(rows, **{"reason": "deleted", "now": NOW, "purge_at": LATER, **facts})


async def listed(catalog: Catalog, now: datetime = NOW) -> list[str]:
    return [row.name for row in await catalog.checkpoints.list_by_run(RUN, now=now)]


async def test_what_is_discarded_is_in_the_trash_as_it_was(catalog: Catalog) -> None:
    saved = await save(catalog, user_metadata={"ä": "ö"}, expires_at=after(days=1), public=True, step=3)
    await catalog.checkpoints.mark_verified([saved.save_id], at=NOW)
    saved = await catalog.checkpoints.get(RUN, "weights", "final", now=NOW)

    [trashed] = await discard(catalog, saved)

    assert trashed == TrashRow(trashed.trash_id, saved, "deleted", NOW, LATER)
    assert trashed == await catalog.trash.get(trashed.trash_id)
    assert (trashed.path, trashed.archive) == (f"tinker://{RUN}/weights/final", "archives/final")
    assert (trashed.owner, trashed.size_bytes) == ("local", 100)
    assert await listed(catalog) == []
    assert await catalog.checkpoints.get_save(saved.save_id) is None
    assert await catalog.checkpoints.usage(now=NOW) == Usage(0, 0)


async def test_of_many_discards_at_once_one_gets_the_row(url: str) -> None:
    async with await Catalog.open(url) as one, await Catalog.open(url) as two:
        saved = await save(one)

        discarded = await asyncio.gather(*(discard(each, saved) for each in [one, two] * 16))

        assert sorted(map(len, discarded)) == [0] * 31 + [1]
        [trashed] = await two.trash.list()
        assert trashed.checkpoint == saved


async def test_discards_that_overlap_share_the_rows_between_them(url: str) -> None:
    async with await Catalog.open(url) as one, await Catalog.open(url) as two:
        rows = [await save(one, f"c{n}") for n in range(12)]
        halves = [rows[:8], rows[4:], rows[::-1], rows[::2]]

        discarded = await asyncio.gather(
            *(discard(each, *half) for half in halves for each in (one, two)),
        )

        taken = [trashed.checkpoint.save_id for each in discarded for trashed in each]
        assert sorted(taken) == [row.save_id for row in rows]
        assert len(await one.trash.list()) == 12


async def test_a_discard_passes_over_what_is_not_published(catalog: Catalog) -> None:
    gone = await save(catalog, "gone")
    await discard(catalog, gone)
    begun = await begin(catalog, "begun")
    rows = [await save(catalog, f"c{n}") for n in range(2)]

    discarded = await discard(catalog, rows[1], begun, gone, rows[0])

    assert [trashed.checkpoint for trashed in discarded] == rows
    assert await catalog.checkpoints.list_pending() == (begun,)
    assert await discard(catalog) == ()


async def test_many_are_discarded_and_claimed_in_one_call(catalog: Catalog) -> None:
    rows = [
        await catalog.checkpoint_saves.register(
            run_id=RUN,
            kind="weights",
            name=f"c{n}",
            owner="local",
            archive=f"archives/{n}",
            base_model="Qwen/Qwen3-8B",
            spec={},
            created_at=NOW,
            size_bytes=1,
        )
        for n in range(3)
    ]
    unknown = [replace(rows[0], save_id=n) for n in range(10_000, 12_500)]

    discarded = await discard(catalog, rows[2], *unknown, *rows[:2])
    claimed = await catalog.trash.claim([*(row.trash_id for row in discarded), *range(10_000, 12_500)])

    assert [trashed.checkpoint for trashed in discarded] == rows
    assert {trashed.archive for trashed in claimed} == {"archives/0", "archives/1", "archives/2"}


async def test_an_overwrite_keeps_what_it_replaced_until_it_is_purged(catalog: Catalog) -> None:
    old = await save(catalog, archive="first")
    new = await begin(catalog, archive="second", overwrite=True)

    committed = await catalog.checkpoint_saves.commit(new, size_bytes=5, now=NOW, purge_at=LATER)
    again = await catalog.checkpoint_saves.commit(new, size_bytes=5, now=NOW, purge_at=LATER)

    assert committed.replaced is not None
    assert committed.replaced == await catalog.trash.get(committed.replaced.trash_id)
    assert (committed.replaced.checkpoint, committed.replaced.purge_at) == (old, LATER)
    assert again.replaced is None
    assert {row.archive for row in await catalog.trash.list()} == {"first"}


async def test_an_overwrite_and_a_delete_of_the_same_name_lose_no_archive(url: str) -> None:
    async with await Catalog.open(url) as one, await Catalog.open(url) as two:
        for n in range(5):
            old = await save(one, f"c{n}", archive=f"old{n}")
            new = await begin(one, f"c{n}", archive=f"new{n}", overwrite=True)

            committed, discarded = await asyncio.gather(
                one.checkpoint_saves.commit(new, size_bytes=5, now=NOW), discard(two, old)
            )

            assert (committed.replaced is not None) != bool(discarded)
        assert {row.archive for row in await two.trash.list()} == {f"old{n}" for n in range(5)}
        assert len(await listed(two)) == 5


async def test_a_restored_checkpoint_is_the_one_it_was(catalog: Catalog) -> None:
    saved = await save(catalog, expires_at=after(days=1), user_metadata={"a": "b"}, step=3)
    await catalog.checkpoints.mark_damaged(saved.save_id, "bad block")
    damaged = await catalog.checkpoints.get(RUN, "weights", "final", now=NOW)
    [trashed] = await discard(catalog, damaged)

    restored = await catalog.trash.undelete(trashed.trash_id, now=NOW)

    assert restored == damaged == await catalog.checkpoints.get(RUN, "weights", "final", now=NOW)
    assert await catalog.trash.list() == ()
    [again] = await discard(catalog, restored)
    assert again.trash_id > trashed.trash_id


async def test_what_expired_comes_back_without_its_expiry(catalog: Catalog) -> None:
    saved = await save(catalog, expires_at=after(minutes=1))
    [trashed] = await discard(catalog, saved, reason="expired", now=after(minutes=2))

    restored = await catalog.trash.undelete(trashed.trash_id, now=after(minutes=3))

    assert restored == replace(saved, expires_at=None)
    assert await listed(catalog, after(minutes=3)) == ["final"]


async def test_a_taken_name_is_not_restored_until_another_is_given(catalog: Catalog) -> None:
    [trashed] = await discard(catalog, await save(catalog, archive="first"))
    new = await save(catalog, archive="second")

    with pytest.raises(
        CheckpointRowExists, match="'tinker://s:train:0/weights/final' exists already or is being written"
    ):
        await catalog.trash.undelete(trashed.trash_id, now=NOW)

    assert await catalog.trash.list() == (trashed,)
    assert await catalog.checkpoints.get(RUN, "weights", "final", now=NOW) == new
    restored = await catalog.trash.undelete(trashed.trash_id, name="old", now=NOW)
    assert restored == replace(trashed.checkpoint, name="old")
    assert await listed(catalog) == ["final", "old"]


async def test_a_name_that_is_being_written_is_not_restored(catalog: Catalog) -> None:
    [trashed] = await discard(catalog, await save(catalog, archive="first"))
    new = await begin(catalog, archive="second")

    with pytest.raises(CheckpointRowExists, match="is being written"):
        await catalog.trash.undelete(trashed.trash_id, now=NOW)

    await catalog.checkpoint_saves.commit(new, size_bytes=1, now=NOW)
    assert await catalog.trash.list() == (trashed,)


async def test_an_expired_checkpoint_makes_place_for_a_restored_one(catalog: Catalog) -> None:
    [trashed] = await discard(catalog, await save(catalog, archive="first"))
    expired = await save(catalog, archive="second", expires_at=after(minutes=1))
    now = after(minutes=2)

    restored = await catalog.trash.undelete(trashed.trash_id, now=now)

    assert restored.archive == "first"
    [replaced] = await catalog.trash.list()
    assert replaced == TrashRow(replaced.trash_id, expired, "expired", now, LATER)


async def test_of_many_restores_at_once_one_succeeds(url: str) -> None:
    async with await Catalog.open(url) as one, await Catalog.open(url) as two:
        [trashed] = await discard(one, await save(one))

        outcomes = await asyncio.gather(
            *(each.trash.undelete(trashed.trash_id, now=NOW) for each in [one, two] * 8), return_exceptions=True
        )

        assert [type(outcome) for outcome in outcomes].count(CheckpointRow) == 1
        assert {type(outcome) for outcome in outcomes} == {CheckpointRow, RowMissing}
        assert await listed(two) == ["final"]


async def test_of_two_restores_under_one_name_one_succeeds(url: str) -> None:
    async with await Catalog.open(url) as one, await Catalog.open(url) as two:
        first, second = [(await discard(one, await save(one, name)))[0] for name in ("a", "b")]

        outcomes = await asyncio.gather(
            one.trash.undelete(first.trash_id, name="c", now=NOW),
            two.trash.undelete(second.trash_id, name="c", now=NOW),
            return_exceptions=True,
        )

        assert {type(outcome) for outcome in outcomes} == {CheckpointRow, CheckpointRowExists}
        assert len(await one.trash.list()) == 1
        assert await listed(two) == ["c"]


async def test_what_is_due_cannot_be_restored(catalog: Catalog) -> None:
    [trashed] = await discard(catalog, await save(catalog))

    with pytest.raises(RowMissing, match=f"trash entry {trashed.trash_id} is gone"):
        await catalog.trash.undelete(trashed.trash_id, now=LATER)
    with pytest.raises(RowMissing, match="trash entry 99 is gone"):
        await catalog.trash.undelete(99, now=NOW)

    assert await catalog.trash.list() == (trashed,)


async def test_a_claimed_row_cannot_be_restored_by_one_who_asked_earlier(catalog: Catalog) -> None:
    [trashed] = await discard(catalog, await save(catalog))

    claimed = await catalog.trash.claim([trashed.trash_id])

    assert claimed == (replace(trashed, purge_at=NOW),)
    with pytest.raises(RowMissing):
        await catalog.trash.undelete(trashed.trash_id, now=NOW)
    assert await catalog.trash.claim([trashed.trash_id]) == claimed
    assert await catalog.trash.due(now=NOW, limit=9) == claimed


async def test_either_a_restore_or_a_claim_gets_the_row(url: str) -> None:
    async with await Catalog.open(url) as one, await Catalog.open(url) as two:
        for n in range(10):
            [trashed] = await discard(one, await save(one, f"c{n}"))

            restored, claimed = await asyncio.gather(
                one.trash.undelete(trashed.trash_id, now=NOW),
                two.trash.claim([trashed.trash_id]),
                return_exceptions=True,
            )

            assert isinstance(claimed, tuple)
            assert isinstance(restored, CheckpointRow) != bool(claimed)


async def test_what_is_forgotten_is_forgotten_once(catalog: Catalog) -> None:
    [trashed] = await discard(catalog, await save(catalog))

    forgotten = await asyncio.gather(*(catalog.trash.forget(trashed.trash_id) for _ in range(8)))

    assert sorted(forgotten) == [False] * 7 + [True]
    assert await catalog.trash.claim([trashed.trash_id]) == ()
    with pytest.raises(RowMissing):
        await catalog.trash.get(trashed.trash_id)


async def test_lists_are_by_when_rows_came_and_when_they_go(catalog: Catalog) -> None:
    for n, purge_at in enumerate([3, 1, 2]):
        saved = await save(catalog, f"c{n}", size_bytes=2**40 + n, owner="local" if n else "other")
        await discard(catalog, saved, now=after(minutes=n), purge_at=after(hours=purge_at))
    trash = catalog.trash

    def names(rows: tuple[TrashRow, ...]) -> list[str]:
        return [row.checkpoint.name for row in rows]

    assert names(await trash.list()) == ["c2", "c1", "c0"]
    assert names(await trash.list(limit=1)) == ["c2"]
    assert names(await trash.list("local")) == ["c2", "c1"]
    assert names(await trash.oldest(2)) == ["c0", "c1"]
    assert names(await trash.due(now=after(hours=2), limit=9)) == ["c1", "c2"]
    assert names(await trash.due(now=after(hours=2), limit=1)) == ["c1"]
    assert await trash.usage() == Usage(3, 3 * 2**40 + 3)
    assert await trash.usage("other") == Usage(1, 2**40)
    assert await trash.usage("nobody") == Usage(0, 0)
    assert {row.archive for row in await trash.list()} == {"archives/c0", "archives/c1", "archives/c2"}


async def test_an_entry_is_found_by_the_save_that_wrote_its_checkpoint(catalog: Catalog) -> None:
    saved, kept = await save(catalog), await save(catalog, "kept")

    [trashed] = await discard(catalog, saved)

    assert await catalog.trash.find_save(saved.save_id) == trashed
    assert await catalog.trash.find_save(kept.save_id) is None
