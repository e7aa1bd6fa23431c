from __future__ import annotations

from dataclasses import replace

import pytest

from chockstone.catalog import Catalog, CheckpointRow, RowMissing, Usage
from support.catalog.making import NOW, after, begin, save

RUN = "s:train:0"


async def names(catalog: Catalog, **page: int) -> list[str]:
    found = await catalog.checkpoints.list("local", **{"limit": 100, **page}, now=NOW)  # type: ignore[arg-type]
    return [checkpoint.name for checkpoint in found.rows]


async def test_a_checkpoint_comes_back_as_it_was_saved(catalog: Catalog) -> None:
    begun = await begin(
        catalog,
        "000020",
        user_metadata={"loss": "0.5"},
        optimizer_config={"type": "adamw"},
        expires_at=after(hours=1),
        public=True,
        step=20,
        size_bytes=90,
    )
    committed = await catalog.checkpoint_saves.commit(begun, size_bytes=100, now=after(seconds=1))

    saved = await catalog.checkpoints.get(RUN, "weights", "000020", now=NOW)
    assert committed.checkpoint == saved == replace(begun, state="ready", size_bytes=100)
    assert committed.replaced is None
    assert saved == CheckpointRow(
        save_id=begun.save_id,
        run_id=RUN,
        kind="weights",
        name="000020",
        owner="local",
        archive="archives/000020",
        state="ready",
        overwrites=False,
        size_bytes=100,
        created_at=NOW,
        expires_at=after(hours=1),
        public=True,
        user_metadata={"loss": "0.5"},
        base_model="Qwen/Qwen3-8B",
        spec={"rank": 32},
        optimizer_config={"type": "adamw"},
        step=20,
        damage=None,
    )
    assert saved.path == f"tinker://{RUN}/weights/000020"


async def test_an_expired_checkpoint_is_gone_for_all_but_the_sweeper(catalog: Catalog) -> None:
    saved = await save(catalog, expires_at=after(hours=1))
    later = await save(catalog, "later", expires_at=after(hours=2))
    await save(catalog, "kept")
    now = after(hours=1)

    with pytest.raises(RowMissing, match="expired at 2030-01-01 13:00 UTC"):
        await catalog.checkpoints.get(RUN, "weights", "final", now=now)
    with pytest.raises(RowMissing):
        await catalog.checkpoints.set_expiry(RUN, "weights", "final", None, now=now)
    assert [c.name for c in (await catalog.checkpoints.list(None, limit=9, now=now)).rows] == ["kept", "later"]
    assert [c.name for c in await catalog.checkpoints.list_by_run(RUN, now=now)] == ["kept", "later"]
    assert await catalog.checkpoints.usage(now=now) == Usage(2, 200)
    assert await catalog.checkpoints.list_expired(now=now, limit=9) == (saved,)
    assert await catalog.checkpoints.list_expired(now=after(hours=3), limit=9) == (saved, later)
    assert await catalog.checkpoints.list_expired(now=after(hours=3), limit=1) == (saved,)
    assert await catalog.checkpoints.get_save(saved.save_id) == saved
    [trashed] = await catalog.checkpoints.discard([saved], reason="expired", now=now, purge_at=now)
    assert trashed.checkpoint == saved


async def test_lists_are_newest_first_with_the_count_of_all(catalog: Catalog) -> None:
    for n in range(5):
        await save(catalog, f"c{n}", now=after(seconds=-n), run_id=f"s:train:{n % 2}")
    await save(catalog, "foreign", owner="other")

    assert await names(catalog) == ["c0", "c1", "c2", "c3", "c4"]
    assert await names(catalog, limit=2, offset=3) == ["c3", "c4"]
    assert (await catalog.checkpoints.list("local", limit=1, now=NOW)).total_count == 5
    assert (await catalog.checkpoints.list("local", limit=1, offset=8, now=NOW)).total_count == 5
    assert (await catalog.checkpoints.list(None, limit=1, now=NOW)).total_count == 6
    assert [c.name for c in await catalog.checkpoints.list_by_run("s:train:1", now=NOW)] == ["c1", "c3"]


async def test_saves_of_one_moment_are_listed_latest_first(catalog: Catalog) -> None:
    for n in range(3):
        await save(catalog, f"c{n}")

    assert await names(catalog) == ["c2", "c1", "c0"]
    latest = await catalog.checkpoints.latest(RUN, "weights", now=NOW)
    assert latest is not None and latest.name == "c2"


async def test_the_latest_is_the_newest_good_one_of_each_run_and_kind(catalog: Catalog) -> None:
    for n in range(3):
        await save(catalog, f"c{n}", now=after(seconds=n))
        await save(catalog, f"x{n}", now=after(seconds=n), run_id="s:train:1")
    await save(catalog, "sampler", kind="sampler_weights")
    await begin(catalog, "unfinished", now=after(seconds=9))
    await save(catalog, "expired", now=after(seconds=8), expires_at=after(seconds=9))
    [damaged] = await catalog.checkpoints.named(RUN, "c2", now=NOW)
    await catalog.checkpoints.mark_damaged(damaged.save_id, "bad block")
    now = after(minutes=1)

    newest = await catalog.checkpoints.latest_of([RUN, "s:train:1", "s:train:2"], now=now)

    assert {key: checkpoint.name for key, checkpoint in newest.items()} == {
        (RUN, "weights"): "c1",
        (RUN, "sampler_weights"): "sampler",
        ("s:train:1", "weights"): "x2",
    }
    assert await catalog.checkpoints.latest(RUN, "weights", now=now) == newest[RUN, "weights"]
    assert await catalog.checkpoints.latest(RUN, "external_weights", now=now) is None
    assert await catalog.checkpoints.latest_of([], now=now) == {}


async def test_what_may_change_about_a_checkpoint_changes_alone(catalog: Catalog) -> None:
    saved = await save(catalog)
    await save(catalog, "other")
    checkpoints = catalog.checkpoints

    public = await checkpoints.set_public(RUN, "weights", "final", public=True, now=NOW)
    expiring = await checkpoints.set_expiry(RUN, "weights", "final", after(hours=1), now=NOW)
    kept = await checkpoints.set_expiry(RUN, "weights", "final", None, now=NOW)
    damaged = await checkpoints.mark_damaged(saved.save_id, "bad block")
    await checkpoints.mark_verified([saved.save_id], at=NOW)
    seen_damaged = await checkpoints.get(RUN, "weights", "final", now=NOW)
    ready = await checkpoints.mark_ready(saved.save_id)
    await checkpoints.mark_verified([saved.save_id], at=after(hours=2))

    assert public == replace(saved, public=True)
    assert expiring == replace(public, expires_at=after(hours=1))
    assert kept == public
    assert damaged == seen_damaged == replace(public, state="damaged", damage="bad block")
    assert ready == public
    assert await checkpoints.get(RUN, "weights", "final", now=NOW) == replace(public, verified_at=after(hours=2))
    assert (await checkpoints.get(RUN, "weights", "other", now=NOW)).state == "ready"


async def test_an_unknown_checkpoint_is_missing(catalog: Catalog) -> None:
    with pytest.raises(RowMissing, match="'tinker://s:train:0/weights/x' is not in this catalog"):
        await catalog.checkpoints.get(RUN, "weights", "x", now=NOW)
    with pytest.raises(RowMissing, match="weights/x"):
        await catalog.checkpoints.set_public(RUN, "weights", "x", public=True, now=NOW)


async def test_a_name_is_found_in_every_kind(catalog: Catalog) -> None:
    weights = await save(catalog)
    sampler = await save(catalog, kind="sampler_weights")
    await save(catalog, "another")
    await save(catalog, run_id="s:train:1")
    await save(catalog, kind="external_weights", expires_at=after(hours=1))

    assert await catalog.checkpoints.named(RUN, "final", now=after(hours=1)) == (sampler, weights)
    assert await catalog.checkpoints.named(RUN, "none", now=NOW) == ()


async def test_a_name_is_pending_only_while_it_is_written(catalog: Catalog) -> None:
    checkpoints = catalog.checkpoints

    before = await checkpoints.is_pending(RUN, "weights", "final")
    begun = await begin(catalog)
    during = await checkpoints.is_pending(RUN, "weights", "final")
    other_kind = await checkpoints.is_pending(RUN, "sampler_weights", "final")
    await catalog.checkpoint_saves.commit(begun, size_bytes=1, now=NOW)

    assert (before, during, other_kind) == (False, True, False)
    assert not await checkpoints.is_pending(RUN, "weights", "final")


async def test_the_history_is_walked_back_past_what_is_no_good(catalog: Catalog) -> None:
    rows = [await save(catalog, f"c{n}", now=after(seconds=n // 2)) for n in range(6)]
    await catalog.checkpoints.mark_damaged(rows[2].save_id, "bad block")
    await save(catalog, "expired", expires_at=after(seconds=9))
    await save(catalog, "sampler", kind="sampler_weights")
    late = await save(catalog, "late", now=after(seconds=-5))  # its number is the highest, and it is the oldest

    async def walk(before_save_id: int | None = None, limit: int = 100) -> list[str]:
        found = await catalog.checkpoints.history(
            RUN, "weights", now=after(minutes=1), limit=limit, before_save_id=before_save_id
        )
        return [row.name for row in found]

    assert await walk() == ["c5", "c4", "c3", "c1", "c0", "late"]
    assert await walk(limit=2) == ["c5", "c4"]
    assert await walk(rows[4].save_id) == ["c3", "c1", "c0", "late"]
    assert await walk(rows[2].save_id) == ["c1", "c0", "late"]
    assert await walk(late.save_id) == []

    await catalog.checkpoints.discard([rows[4]], reason="deleted", now=NOW, purge_at=NOW)
    assert await walk(rows[4].save_id) == ["c3", "c1", "c0"]


async def test_what_was_verified_longest_ago_comes_first(catalog: Catalog) -> None:
    rows = [await save(catalog, f"c{n}", now=after(hours=n)) for n in range(5)]
    await begin(catalog, "unfinished")
    await catalog.checkpoints.mark_verified([rows[0].save_id], at=after(hours=2.5))
    await catalog.checkpoints.mark_verified([], at=after(hours=9))
    await catalog.checkpoints.mark_damaged(rows[1].save_id, "bad block")

    async def unverified(limit: int = 9) -> list[str]:
        found = await catalog.checkpoints.list_unverified(before=after(hours=4), limit=limit)
        return [row.name for row in found]

    assert await unverified() == ["c2", "c0", "c3"]
    assert await unverified(limit=1) == ["c2"]


async def test_many_are_verified_at_once(catalog: Catalog) -> None:
    saved = await save(catalog)

    await catalog.checkpoints.mark_verified([*range(10_000, 12_500), saved.save_id], at=after(hours=1))

    assert await catalog.checkpoints.get_save(saved.save_id) == replace(saved, verified_at=after(hours=1))


@pytest.mark.parametrize("page", [1, 2, 3, 1000])
async def test_iteration_meets_every_row_once(catalog: Catalog, page: int) -> None:
    rows = [await save(catalog, f"c{n}") for n in range(4)]
    rows.append(await save(catalog, "expired", expires_at=after(hours=-1), now=after(hours=-2)))
    rows.append(await begin(catalog, "unfinished"))

    assert [row async for row in catalog.checkpoints.iterate(page)] == rows


async def test_a_size_is_set_right_of_what_is_published(catalog: Catalog) -> None:
    saved = await save(catalog)
    begun = await begin(catalog, "begun", size_bytes=7)

    assert await catalog.checkpoints.set_size(saved.save_id, 2**40) == replace(saved, size_bytes=2**40)
    assert await catalog.checkpoints.set_size(begun.save_id, 1) is None
    assert await catalog.checkpoints.list_pending() == (begun,)


async def test_damaged_checkpoints_are_listed_newest_first_until_they_expire(catalog: Catalog) -> None:
    saved = [await save(catalog, name) for name in ("a", "b", "c")]
    gone = await save(catalog, "gone", expires_at=NOW)
    for row in (*saved[1:], gone):
        await catalog.checkpoints.mark_damaged(row.save_id, "block 3")

    assert [row.name for row in await catalog.checkpoints.list_damaged(now=NOW, per_owner=10, limit=10)] == ["c", "b"]
