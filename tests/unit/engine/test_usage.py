from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta

import pytest

from chockstone.catalog import Catalog, CatalogUnavailable, Use
from chockstone.engine.engine import Engine
from chockstone.engine.samples.sampling import SamplerSource
from chockstone.engine.usage import UsageMeter
from support.engine.making import NOW, Clock, answer, made_run, saved

HOUR = timedelta(hours=1)


async def used(catalog: Catalog) -> dict[str, float]:
    found = await catalog.usage.list(None, start=NOW - HOUR, end=NOW + 10 * HOUR)
    return {use.type: use.amount for use in found}


async def test_tokens_and_checkpoints_are_counted_where_they_happen(engine: Engine, catalog: Catalog) -> None:
    live = await made_run(engine)
    for seq_id, tokens in ((1, b"5"), (2, b"7")):
        await engine.training.forward_backward(live, seq_id, tokens)
    await saved(engine, live, 3)
    await engine.sampling.submit(SamplerSource("s:sample:0", "local", "tiny", None), 0, b"abc", num_samples=1)
    await engine.sampling.drained()
    await engine.usage.flush()

    assert await used(catalog) == {"training": 12, "checkpoint": 1, "sampling_prefill": 3, "sampling_sample": 1}
    [training] = [use for use in await catalog.usage.list("local", start=NOW, end=NOW + HOUR) if use.type == "training"]
    assert (training.session_id, training.base_model, training.bucket_start) == ("s", "tiny", NOW)


async def test_a_failed_pass_costs_nothing(engine: Engine, catalog: Catalog) -> None:
    live = await made_run(engine)

    assert "error" in await answer(engine, await engine.training.forward_backward(live, 1, b"none"))
    await engine.usage.flush()

    assert await used(catalog) == {}


async def test_use_belongs_to_the_project_its_session_is_in(catalog: Catalog) -> None:
    meter = UsageMeter(catalog, now=lambda: NOW)
    await catalog.sessions.set_project("s", "p")
    meter.trained("s", owner="local", base_model="tiny", tokens=5)
    meter.trained("gone", owner="local", base_model="tiny", tokens=6)
    await meter.flush()

    found = await catalog.usage.list(None, start=NOW, end=NOW + HOUR)
    assert {use.session_id: use.project_id for use in found} == {"s": "p", "gone": None}


async def test_what_is_kept_is_counted_in_gigabyte_hours(catalog: Catalog) -> None:
    clock = Clock()
    meter = UsageMeter(catalog, now=clock)
    row = await catalog.checkpoints.begin(
        "r", "weights", "a", archive="x", owner="ann", base_model="tiny", spec={}, now=NOW
    )
    await catalog.checkpoints.commit(row, size_bytes=3 * 10**9, now=NOW)

    clock.pass_seconds(1800)
    await meter.count_storage()
    clock.pass_seconds(1800)
    await meter.count_storage()
    await meter.flush()

    total = sum(use.amount for use in await catalog.usage.list("ann", start=NOW, end=NOW + 2 * HOUR))
    assert total == pytest.approx(3.0)


async def test_a_catalog_that_fails_loses_no_count(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    async def unavailable(uses: Iterable[Use]) -> None:
        raise CatalogUnavailable("the disk is full")

    meter = UsageMeter(catalog, now=lambda: NOW)
    meter.trained("s", owner="local", base_model="tiny", tokens=5)
    with monkeypatch.context() as patched:
        patched.setattr(catalog.usage, "add", unavailable)
        with pytest.raises(CatalogUnavailable):
            await meter.flush()
    meter.trained("s", owner="local", base_model="tiny", tokens=6)
    await meter.flush()

    assert await used(catalog) == {"training": 11}
