from __future__ import annotations

import asyncio
from collections.abc import Sequence

import httpx
import pytest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

from chockstone.api.context import Context
from chockstone.api.operations.metrics import MetricsPage
from chockstone.telemetry.declarations import DECLARATIONS, QUEUED_SAMPLES
from chockstone.telemetry.instruments import Instruments
from support.api.users import User
from support.exposition import series_of
from support.served import Served


@pytest.fixture
async def text(served: Served, context: Context, ann: User) -> str:
    for late_seconds in (0.002, 0.3, 0.2):
        context.loop_health.beat(late_seconds)
    run_id = await ann.run()
    await ann.save(run_id, "secret-name")
    await ann.http.get("training_runs/made-up-run")
    async with httpx.AsyncClient(transport=httpx.ASGITransport(served.app), base_url="http://localhost") as stranger:
        answer = await stranger.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    return answer.text


async def test_metrics_need_no_credential_and_tell_how_late_the_loop_was(text: str) -> None:
    told = series_of(text)

    assert told["chockstone_loop_stall_seconds_count"] == 3
    assert told['chockstone_loop_stall_seconds_bucket{le="0.1"}'] == 1
    assert told["chockstone_loop_stall_max_seconds"] == 0.3


async def test_metrics_tell_nothing_of_users(text: str) -> None:
    families = list(text_string_to_metric_families(text))
    labels = {label for family in families for sample in family.samples for label in sample.labels}

    assert all(family.name.startswith("chockstone_") for family in families)
    assert labels <= {"le", *(label for declared in DECLARATIONS.values() for label in declared.labels)}
    told = " ".join(value for family in families for sample in family.samples for value in sample.labels.values())
    assert not [word for word in ("made-up", "secret-name", "ann", ":train:", "tml-") if word in told]


async def test_requests_are_counted_with_their_template(text: str) -> None:
    told = series_of(text)

    assert told['chockstone_http_requests_total{method="POST", route="/create_session", status="200"}'] == 1
    assert told['chockstone_http_requests_total{method="GET", route="/training_runs/{run_id}", status="404"}'] == 1


async def test_a_save_is_counted(text: str) -> None:
    told = series_of(text)

    assert told['chockstone_operations_total{operation="save_weights", outcome="ok"}'] == 1
    assert told['chockstone_save_seconds_count{kind="weights"}'] == 1
    assert told['chockstone_saved_bytes_total{kind="weights"}'] > 0
    assert told['chockstone_checkpoints{state="ready"}'] == 1
    assert told['chockstone_operations_total{operation="create_model", outcome="ok"}'] == 1


async def test_many_readers_at_once_make_the_page_once_a_second() -> None:
    now, asked = 100.0, 0
    instruments = Instruments()

    async def read_facts() -> Sequence[Metric]:
        nonlocal asked
        asked += 1
        await asyncio.sleep(0)
        return [QUEUED_SAMPLES.family(((), float(asked)))]

    page = MetricsPage(instruments, read_facts, monotonic=lambda: now)

    first = await asyncio.gather(*(page.read() for _ in range(20)))
    now += 2
    later = await page.read()

    assert {series_of(text)["chockstone_queued_samples"] for text in first} == {1}
    assert series_of(later)["chockstone_queued_samples"] == 2
