from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from datetime import timedelta

import pytest

from chockstone.catalog import Catalog, CatalogUnavailable, JournalUses, UsagePosition, Use
from chockstone.engine.engine import Engine
from chockstone.engine.samples.sampling import SamplerSource
from chockstone.engine.usage import JournalPoint, TrainedTotal, UsageMeter
from support.engine.making import NOW, Clock, answer, made_run, saved

HOUR = timedelta(hours=1)


def point(position: int, counted: list[int] | None = None, *, birth: str = "b") -> JournalPoint:
    """Of a pass in the journal of a run; its position is noted once it is counted."""
    noted = [] if counted is None else counted
    return JournalPoint("s:train:0", birth, position, position, NOW, lambda: noted.append(position))


def train(meter: UsageMeter, tokens: int, at: JournalPoint) -> None:
    meter.trained("s", owner="local", base_model="tiny", tokens=tokens, point=at)


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
    row = await catalog.checkpoint_saves.begin(
        "r", "weights", "a", archive="x", owner="ann", base_model="tiny", spec={}, now=NOW
    )
    await catalog.checkpoint_saves.commit(row, size_bytes=3 * 10**9, now=NOW)

    clock.pass_seconds(1800)
    await meter.count_storage()
    clock.pass_seconds(1800)
    await meter.count_storage()
    await meter.flush()

    total = sum(use.amount for use in await catalog.usage.list("ann", start=NOW, end=NOW + 2 * HOUR))
    assert total == pytest.approx(3.0)


async def test_a_catalog_that_fails_loses_no_count(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    async def unavailable(uses: Iterable[Use], journals: Sequence[JournalUses]) -> None:
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


async def test_a_pass_that_is_reported_again_is_counted_once(catalog: Catalog) -> None:
    first, second = UsageMeter(catalog, now=lambda: NOW), UsageMeter(catalog, now=lambda: NOW)
    counted: list[int] = []
    train(first, 5, point(5))
    await first.flush()

    for tokens, position in ((5, 5), (7, 12)):
        train(second, tokens, point(position, counted))
    await second.flush()

    assert await used(catalog) == {"training": 12}
    assert counted == [5, 12]
    assert await second.position("s:train:0", "b") == UsagePosition("s:train:0", "b", 12, 12)
    assert await second.position("s:train:0", "c") is None


async def test_a_flush_that_was_written_and_not_answered_counts_once(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when the connection to PostgreSQL is cut during the commit."""
    add = catalog.usage.add

    async def unanswered(uses: Iterable[Use], journals: Sequence[JournalUses]) -> None:
        await add(uses, journals)
        raise CatalogUnavailable("the connection was cut")

    meter, counted = UsageMeter(catalog, now=lambda: NOW), list[int]()
    train(meter, 5, point(5, counted))
    with monkeypatch.context() as patched:
        patched.setattr(catalog.usage, "add", unanswered)
        with pytest.raises(CatalogUnavailable):
            await meter.flush()
    assert counted == []
    train(meter, 7, point(12, counted))
    await meter.flush()

    assert await used(catalog) == {"training": 12}
    assert counted == [5, 12]


async def test_a_flush_that_is_cancelled_loses_no_count(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = asyncio.Event()

    async def endless(session_id: str) -> None:
        begun.set()
        await asyncio.Event().wait()

    meter = UsageMeter(catalog, now=lambda: NOW)
    train(meter, 5, point(5))
    meter.trained("s", owner="local", base_model="tiny", tokens=6)
    with monkeypatch.context() as patched:
        patched.setattr(catalog.sessions, "get", endless)
        flushing = asyncio.create_task(meter.flush())
        await begun.wait()
        flushing.cancel()
        await asyncio.wait({flushing})
    await meter.flush()

    assert await used(catalog) == {"training": 11}


async def test_a_journal_is_flushed_before_it_is_deleted(catalog: Catalog) -> None:
    meter = UsageMeter(catalog, now=lambda: NOW)
    train(meter, 5, point(5))

    await meter.flush_journal("another")
    assert await used(catalog) == {}
    await meter.flush_journal("s:train:0")
    assert await used(catalog) == {"training": 5}


def test_a_total_is_read_as_it_was_written() -> None:
    total = TrainedTotal(12, 7, 1893499200)

    assert TrainedTotal.from_json(total.to_json()) == total
    assert total.moment == NOW
