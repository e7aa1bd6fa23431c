"""Saves in the catalog: begun, published, given up, registered."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from chockstone.catalog import Catalog, CheckpointRow, CheckpointRowExists, RowMissing, Usage, Use
from support.catalog.making import NOW, after, begin, make_session, save

RUN = "s:train:0"


async def names(catalog: Catalog, **page: int) -> list[str]:
    found = await catalog.checkpoints.list("local", **{"limit": 100, **page}, now=NOW)  # type: ignore[arg-type]
    return [checkpoint.name for checkpoint in found.rows]


async def register(catalog: Catalog, name: str = "final", archive: str = "archives/final") -> CheckpointRow:
    return await catalog.checkpoint_saves.register(
        run_id=RUN,
        kind="weights",
        name=name,
        owner="local",
        archive=archive,
        base_model="Qwen/Qwen3-8B",
        spec={"rank": 32},
        created_at=after(days=-1),
        size_bytes=7,
        optimizer_config={"type": "adamw"},
        user_metadata={"loss": "0.5"},
        expires_at=after(days=1),
        public=True,
        step=3,
        state="damaged",
        damage="bad block",
    )


async def test_a_pending_save_is_seen_by_nobody_else(catalog: Catalog) -> None:
    begun = await begin(catalog)

    assert begun.state == "pending"
    assert await names(catalog) == []
    assert await catalog.checkpoints.list_by_run(RUN, now=NOW) == ()
    assert await catalog.checkpoints.latest(RUN, "weights", now=NOW) is None
    assert await catalog.checkpoints.usage(now=NOW) == Usage(0, 0)
    assert await catalog.checkpoints.named(RUN, "final", now=NOW) == ()
    assert await catalog.checkpoints.history(RUN, "weights", now=NOW) == ()
    assert await catalog.checkpoints.get_save(begun.save_id) is None
    assert await catalog.checkpoints.mark_damaged(begun.save_id, "bad block") is None
    assert await catalog.checkpoints.mark_ready(begun.save_id) is None
    assert await catalog.checkpoints.list_pending() == (begun,)
    with pytest.raises(RowMissing):
        await catalog.checkpoints.get(RUN, "weights", "final", now=NOW)


async def test_a_taken_name_is_refused(catalog: Catalog) -> None:
    await begin(catalog, "writing")
    await save(catalog, "written")
    broken = await save(catalog, "broken")
    await catalog.checkpoints.mark_damaged(broken.save_id, "bad block")

    for overwrite in (False, True):
        with pytest.raises(CheckpointRowExists, match=r"'tinker://s:train:0/weights/writing' is being written"):
            await begin(catalog, "writing", archive="another", overwrite=overwrite)
    for name in ("written", "broken"):
        with pytest.raises(CheckpointRowExists, match=f"weights/{name}' exists already"):
            await begin(catalog, name, archive="another")


async def test_names_are_free_in_other_runs_and_kinds(catalog: Catalog) -> None:
    await save(catalog)

    await save(catalog, kind="sampler_weights")
    await save(catalog, run_id="s:train:1")

    assert await names(catalog) == ["final"] * 3


async def test_an_overwrite_leaves_the_old_one_until_it_commits(catalog: Catalog) -> None:
    old = await save(catalog, archive="first", user_metadata={"a": "b"})

    new = await begin(catalog, archive="second", overwrite=True)
    during = await catalog.checkpoints.get(RUN, "weights", "final", now=NOW)
    committed = await catalog.checkpoint_saves.commit(new, size_bytes=5, now=NOW)

    assert during == old
    assert committed.replaced is not None
    assert committed.replaced.checkpoint == old
    assert await catalog.trash.list() == (committed.replaced,)
    assert (committed.replaced.reason, committed.replaced.discarded_at) == ("overwritten", NOW)
    assert committed.replaced.purge_at == NOW
    assert committed.checkpoint == await catalog.checkpoints.get(RUN, "weights", "final", now=NOW)
    assert (committed.checkpoint.archive, committed.checkpoint.user_metadata) == ("second", {})
    assert await names(catalog) == ["final"]


async def test_an_overwrite_that_fails_leaves_the_old_one(catalog: Catalog) -> None:
    old = await save(catalog, archive="first")
    new = await begin(catalog, archive="second", overwrite=True)

    given_up = await catalog.checkpoint_saves.fail(new)

    assert given_up
    with pytest.raises(RowMissing, match="given up"):
        await catalog.checkpoint_saves.commit(new, size_bytes=5, now=NOW)
    assert await catalog.checkpoints.get(RUN, "weights", "final", now=NOW) == old


async def test_a_failed_save_frees_its_name_but_not_its_number(catalog: Catalog) -> None:
    first = await begin(catalog, archive="first")

    assert await catalog.checkpoint_saves.fail(first)
    assert not await catalog.checkpoint_saves.fail(first)
    second = await begin(catalog, archive="second")

    assert second.save_id > first.save_id


async def test_what_is_published_cannot_fail(catalog: Catalog) -> None:
    saved = await save(catalog)

    assert not await catalog.checkpoint_saves.fail(saved)
    assert await names(catalog) == ["final"]


@pytest.mark.parametrize("overwrite", [False, True])
async def test_a_save_begun_again_after_a_crash_is_the_same_save(catalog: Catalog, overwrite: bool) -> None:
    first = await begin(catalog, archive="mine", overwrite=overwrite)
    again = await begin(catalog, archive="mine", overwrite=overwrite, now=after(seconds=9))
    committed = await catalog.checkpoint_saves.commit(again, size_bytes=5, now=NOW)
    after_commit = await begin(catalog, archive="mine", overwrite=overwrite)
    twice = await catalog.checkpoint_saves.commit(first, size_bytes=5, now=NOW)

    assert again == first
    assert after_commit == committed.checkpoint == twice.checkpoint
    assert twice.replaced is None
    assert await catalog.checkpoints.list_pending() == ()


async def test_a_save_that_has_expired_since_is_still_that_save(catalog: Catalog) -> None:
    saved = await save(catalog, archive="mine", expires_at=after(hours=1))

    assert await begin(catalog, archive="mine", now=after(hours=2)) == saved


async def test_an_expired_name_is_free(catalog: Catalog) -> None:
    old = await save(catalog, archive="first", expires_at=after(hours=1))
    new = await begin(catalog, archive="second", now=after(hours=1))

    committed = await catalog.checkpoint_saves.commit(new, size_bytes=5, now=after(hours=1))

    assert committed.replaced is not None
    assert committed.replaced.checkpoint == old
    assert (await catalog.checkpoints.get(RUN, "weights", "final", now=after(hours=1))).archive == "second"


async def test_of_many_saves_under_one_name_one_begins(url: str) -> None:
    async with await Catalog.open(url) as one, await Catalog.open(url) as two:
        outcomes = await asyncio.gather(
            *(begin(each, archive=f"a{n}") for n, each in enumerate([one, two] * 15)), return_exceptions=True
        )

        begun = [outcome for outcome in outcomes if isinstance(outcome, CheckpointRow)]
        assert len(begun) == 1
        assert {type(outcome) for outcome in outcomes} == {CheckpointRow, CheckpointRowExists}
        assert await two.checkpoints.list_pending() == (begun[0],)


async def test_an_archive_is_registered_once(url: str) -> None:
    async with await Catalog.open(url) as one, await Catalog.open(url) as two:
        registered = await asyncio.gather(*(register(each) for each in [one, two] * 10))

        assert len({row.save_id for row in registered}) == 1
        assert await two.checkpoints.get(RUN, "weights", "final", now=NOW) == registered[0]
        assert registered[0] == CheckpointRow(
            save_id=registered[0].save_id,
            run_id=RUN,
            kind="weights",
            name="final",
            owner="local",
            archive="archives/final",
            state="damaged",
            overwrites=False,
            size_bytes=7,
            created_at=after(days=-1),
            expires_at=after(days=1),
            public=True,
            user_metadata={"loss": "0.5"},
            base_model="Qwen/Qwen3-8B",
            spec={"rank": 32},
            optimizer_config={"type": "adamw"},
            step=3,
            damage="bad block",
        )


async def test_an_archive_that_has_a_row_keeps_it(catalog: Catalog) -> None:
    saved = await save(catalog)
    begun = await begin(catalog, "unfinished")

    assert await register(catalog, name="renamed", archive=saved.archive) == saved
    assert await register(catalog, name="unfinished", archive=begun.archive) == begun
    assert await names(catalog) == ["final"]


async def test_a_taken_name_is_not_registered(catalog: Catalog) -> None:
    saved = await save(catalog)
    await begin(catalog, "unfinished")

    with pytest.raises(CheckpointRowExists, match="'tinker://s:train:0/weights/final' exists already"):
        await register(catalog, archive="another")

    await register(catalog, name="unfinished", archive="another")
    assert await names(catalog) == ["final", "unfinished"]
    assert await catalog.checkpoints.get(RUN, "weights", "final", now=NOW) == saved


@pytest.mark.parametrize("overwrite", [False, True])
async def test_a_save_is_counted_once_with_its_publication(catalog: Catalog, overwrite: bool) -> None:
    await make_session(catalog, project_id="p")
    if overwrite:
        await save(catalog)
    use = Use(NOW, "local", "s", None, "Qwen/Qwen3-8B", "checkpoint", False, 1)
    begun = await begin(catalog, overwrite=overwrite, archive="archives/new")

    for _ in range(2):  # as after an answer of the database that was lost
        await catalog.checkpoint_saves.commit(begun, size_bytes=1, now=NOW, use=use)

    counted = replace(use, project_id="p")
    assert await catalog.usage.list(None, start=after(hours=-1), end=after(hours=1)) == (counted,)


async def test_a_save_that_lost_its_name_is_not_counted(catalog: Catalog) -> None:
    use = Use(NOW, "local", "s", None, "Qwen/Qwen3-8B", "checkpoint", False, 1)
    begun = await begin(catalog)
    assert await catalog.checkpoint_saves.fail(begun)

    with pytest.raises(RowMissing):
        await catalog.checkpoint_saves.commit(begun, size_bytes=1, now=NOW, use=use)

    assert await catalog.usage.list(None, start=after(hours=-1), end=after(hours=1)) == ()
