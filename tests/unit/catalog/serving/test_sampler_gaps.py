from __future__ import annotations

from dataclasses import replace
from typing import Any

from chockstone.catalog import BASE_ITSELF, Catalog, SamplerGapRow
from support.catalog.making import NOW, after, make_run, make_sampler, make_session, save

MODEL = "Qwen/Qwen3-8B"


def measured(
    archive: str = "a", *, server: str = "http://one", mean: float | None = 0.01, **facts: Any
) -> SamplerGapRow:
    row = SamplerGapRow(MODEL, archive, server, mean, mean, 128, None, NOW)
    return replace(row, **facts)


async def test_the_newest_gap_of_weights_on_each_server_is_kept(catalog: Catalog) -> None:
    await catalog.sampler_gaps.record(measured())
    newest = measured(mean=None, largest=None, tokens=0, trouble="it died", measured_at=after(hours=1))
    others = measured(server="http://two", mean=0.5), measured("b")
    for row in (newest, *others):
        await catalog.sampler_gaps.record(row)

    found = await catalog.sampler_gaps.of_archives(["a", "b", "never measured", *(f"n{n}" for n in range(2500))])

    assert found == {"a": [newest, others[0]], "b": [others[1]]}


async def test_the_largest_mean_of_weights_is_that_of_the_worst_server(catalog: Catalog) -> None:
    many = [f"n{number}" for number in range(1500)]
    assert await catalog.sampler_gaps.largest_means(many) == {}
    failed = measured("failed", mean=None, largest=None, trouble="it died")
    for row in (measured(), measured(server="http://two", mean=0.5), measured("b"), failed):
        await catalog.sampler_gaps.record(row)

    assert await catalog.sampler_gaps.largest_means(["a", "b", "failed", *many]) == {"a": 0.5, "b": 0.01}


async def test_gaps_of_base_models_are_found_by_their_names(catalog: Catalog) -> None:
    base = measured(BASE_ITSELF)
    for row in (base, measured("a")):
        await catalog.sampler_gaps.record(row)

    assert await catalog.sampler_gaps.of_base_models([MODEL, "other"]) == {MODEL: [base]}
    assert await catalog.sampler_gaps.of_base_models([]) == {}
    assert await catalog.sampler_gaps.of_archives([BASE_ITSELF]) == {}


async def test_gaps_of_weights_that_are_gone_and_of_other_servers_are_pruned(catalog: Catalog) -> None:
    for session in ("s", "over"):
        await make_session(catalog, session)
    await make_run(catalog)
    kept = await save(catalog, "kept")
    trashed = await save(catalog, "trashed")
    await catalog.checkpoints.discard([trashed], reason="deleted", now=NOW, purge_at=NOW)
    await make_sampler(catalog, archive="sampled")
    await make_sampler(catalog, "over", archive="was sampled")
    await catalog.sessions.finish("over", reason="success", now=NOW)
    staying = [kept.archive, trashed.archive, "sampled"]
    for archive in (*staying, "was sampled", "gone", BASE_ITSELF):
        await catalog.sampler_gaps.record(measured(archive))
    await catalog.sampler_gaps.record(measured(kept.archive, server="http://gone"))

    assert await catalog.sampler_gaps.prune(servers=["http://one", "http://two"]) == 3

    left = await catalog.sampler_gaps.of_archives([*staying, "was sampled", "gone"])
    assert sorted(left) == sorted(staying)
    assert [row.server for row in left[kept.archive]] == ["http://one"]
    assert len(await catalog.sampler_gaps.of_base_models([MODEL])) == 1
    assert await catalog.sampler_gaps.prune(servers=[]) == 4
