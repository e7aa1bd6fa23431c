from __future__ import annotations

import asyncio

import pytest

from chockstone.api.context import Context
from chockstone.api.operations.metric_facts import FactReader
from chockstone.catalog.errors import CatalogUnavailable
from support.exposition import series_of
from support.served import Served


async def read(context: Context) -> dict[str, float]:
    return series_of(context.instruments.render(await FactReader(context).read()))


async def test_facts_are_those_of_the_engine(served: Served, context: Context) -> None:
    found = await read(context)

    assert found["chockstone_worker_ready"] == 1
    assert found["chockstone_queued_operations"] == 0
    assert found["chockstone_journal_failing"] == 0
    assert found['chockstone_checkpoints{state="damaged"}'] == 0
    assert found['chockstone_disk_free_bytes{place="store"}'] > 0
    assert found["chockstone_disk_reserve_bytes"] == context.engine.rules.reserve_bytes
    assert found["chockstone_scrape_errors"] == 0


async def test_a_catalog_that_does_not_answer_leaves_its_metrics_out(
    served: Served, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object, **__: object) -> None:
        raise CatalogUnavailable("away")

    monkeypatch.setattr(context.catalog.checkpoints, "usage_by_state", fail)

    found = await read(context)

    assert found["chockstone_scrape_errors"] == 1
    assert 'chockstone_checkpoints{state="damaged"}' not in found
    assert found["chockstone_worker_ready"] == 1


async def test_many_readers_at_once_read_once(
    served: Served, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, asked = 100.0, 0
    usage = context.catalog.checkpoints.usage_by_state

    async def count(*values: object, **named: object) -> object:
        nonlocal asked
        asked += 1
        return await usage(*values, **named)  # type: ignore[arg-type]  # passed on

    monkeypatch.setattr(context.catalog.checkpoints, "usage_by_state", count)
    reader = FactReader(context, monotonic=lambda: now)

    await asyncio.gather(*(reader.read() for _ in range(20)))
    assert asked == 1
    now += 2
    await reader.read()
    assert asked == 2
