from __future__ import annotations

import asyncio

import pytest

from chockstone.catalog import Catalog, RowMissing, SamplerRow
from support.catalog.making import NOW, after, make_sampler, make_session


async def test_a_sampler_comes_back_as_it_was_made(catalog: Catalog) -> None:
    await make_session(catalog)

    made = await make_sampler(catalog, seq_id=2, model_path="tinker://r/sampler_weights/a", archive="ephemeral/7")

    assert made == await catalog.samplers.get("s:sample:2")
    assert made == SamplerRow(
        sampling_session_id="s:sample:2",
        session_id="s",
        seq_id=2,
        owner="local",
        base_model="Qwen/Qwen3-8B",
        model_path="tinker://r/sampler_weights/a",
        archive="ephemeral/7",
        created_at=NOW,
        next_client_counter=1,
    )


async def test_a_retried_sampler_is_the_first_one(catalog: Catalog) -> None:
    await make_session(catalog)

    made = await asyncio.gather(*(make_sampler(catalog, archive=str(n)) for n in range(40)))

    assert len(set(made)) == 1
    assert await catalog.samplers.list_by_session("s") == (made[0],)


async def test_every_client_that_joins_gets_its_own_number(url: str) -> None:
    async with await Catalog.open(url) as one, await Catalog.open(url) as two:
        await make_session(one)
        for n in range(2):
            await make_sampler(one, seq_id=n)

        numbers = await asyncio.gather(*(each.samplers.join("s:sample:0") for _ in range(25) for each in (one, two)))

        assert sorted(numbers) == list(range(1, 51))
        assert await two.samplers.join("s:sample:1") == 1


async def test_a_sampler_needs_its_session(catalog: Catalog) -> None:
    with pytest.raises(RowMissing, match="session 's'"):
        await make_sampler(catalog)


async def test_an_unknown_sampler_is_missing(catalog: Catalog) -> None:
    with pytest.raises(RowMissing, match="sampling session 'x'"):
        await catalog.samplers.get("x")
    with pytest.raises(RowMissing, match="sampling session 'x'"):
        await catalog.samplers.join("x")


async def test_a_sessions_samplers_are_in_order(catalog: Catalog) -> None:
    for name in ("s", "t"):
        await make_session(catalog, name)
        for n in (10, 2, 1):
            await make_sampler(catalog, name, n)

    assert [sampler.seq_id for sampler in await catalog.samplers.list_by_session("s")] == [1, 2, 10]


async def test_an_archive_is_in_use_until_the_last_session_that_samples_from_it_ends(catalog: Catalog) -> None:
    for name in ("s", "t"):
        await make_session(catalog, name)
        await make_sampler(catalog, name, 0, archive="shared")
    await make_sampler(catalog, "s", 1, archive="own")
    await make_sampler(catalog, "s", 2)  # of the base model

    async def in_use() -> set[str]:
        return await catalog.samplers.in_use(["shared", "own", "unknown"])

    at_first = await in_use()
    most = 300_000 if catalog._database.is_sqlite else 70_000  # more than the database takes in one statement
    many = [f"n{number}" for number in range(most)]
    assert await catalog.samplers.in_use([*many, "own"]) == {"own"}
    await catalog.sessions.finish("s", reason="success", now=NOW)
    later = await in_use()
    await catalog.sessions.finish("t", reason="cancelled", now=NOW)

    assert at_first == {"shared", "own"}
    assert later == {"shared"}
    assert await in_use() == set()
    assert await catalog.samplers.in_use([]) == set()


async def test_samplers_of_unfinished_sessions_are_listed_in_pages(catalog: Catalog) -> None:
    await make_session(catalog)
    await make_session(catalog, "over")
    made = [await make_sampler(catalog, seq_id=number, now=after(seconds=number // 2)) for number in range(4)]
    await make_sampler(catalog, "over")
    await catalog.sessions.finish("over", reason="success", detail=None, now=NOW)

    first = await catalog.samplers.list_unfinished(None, limit=3)
    second = await catalog.samplers.list_unfinished("local", after=first[-1].sampling_session_id, limit=3)

    assert [*first, *second] == made[::-1]
    assert await catalog.samplers.list_unfinished("ann", limit=3) == ()
