from __future__ import annotations

import time
from typing import Any

import pytest

from chockstone.api.context import Context
from chockstone.api.operations.metric_facts import FactReader
from chockstone.backends.protocol import GpuMemory, SamplerStatus, WorkerMemory, WorkerStatus
from chockstone.catalog.errors import CatalogUnavailable
from support.api.users import User
from support.engine.gap_meter import ScriptedGapMeter, measured
from support.exposition import series_of
from support.served import Served


def step(run_id: str, seq_id: int) -> dict[str, Any]:
    return {"model_id": run_id, "seq_id": seq_id, "adam_params": {"learning_rate": 1e-4}}


async def read(context: Context) -> dict[str, float]:
    return series_of(context.instruments.render(await FactReader(context).read()))


async def test_facts_are_those_of_the_engine(served: Served, context: Context) -> None:
    found = await read(context)

    assert found["chockstone_worker_ready"] == 1
    assert found["chockstone_ready"] == 1
    assert found["chockstone_queued_operations"] == 0
    assert found["chockstone_oldest_wait_seconds"] == 0
    assert found["chockstone_journal_failing"] == 0
    assert found['chockstone_runs{state="lost"}'] == 0
    assert found['chockstone_checkpoints{state="damaged"}'] == 0
    assert found['chockstone_disk_free_bytes{place="store"}'] > 0
    assert found["chockstone_disk_reserve_bytes"] == context.engine.rules.reserve_bytes
    assert found["chockstone_scrape_errors"] == 0


async def test_the_worker_reports_its_memory_its_gpus_and_its_sampler(
    served: Served, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    status = WorkerStatus(
        phase="ready",
        since=0.0,
        memory=WorkerMemory(7 << 20, (GpuMemory("H100", 5 << 30, 80 << 30), GpuMemory("H100", 6 << 30, 80 << 30))),
        sampler=SamplerStatus(requests=3, sequences=2, cache_bytes=10, cache_limit_bytes=100, decode_steps=4),
    )
    monkeypatch.setattr(type(served.backend), "status", property(lambda _: status))

    found = await read(context)

    assert found["chockstone_worker_memory_bytes"] == 7 << 20
    assert found['chockstone_gpu_memory_used_bytes{gpu="1"}'] == 6 << 30
    assert found['chockstone_gpu_memory_total_bytes{gpu="0"}'] == 80 << 30
    assert found["chockstone_sampler_requests"] == 3
    assert found["chockstone_sampler_cache_limit_bytes"] == 100
    assert found["chockstone_sampler_decode_steps_total"] == 4


async def test_a_worker_that_is_away_makes_the_server_unready(served: Served, context: Context) -> None:
    served.backend.is_ready = False

    found = await read(context)

    assert found["chockstone_worker_ready"] == 0
    assert found["chockstone_ready"] == 0


async def test_operations_without_a_result_have_an_age_and_are_counted_as_the_server_page_does(
    served: Served, context: Context, ann: User, root: User
) -> None:
    run_id = await ann.run()
    served.backend.hold("optim_step")
    await ann.http.post("optim_step", json=step(run_id, 2))
    await ann.http.post("optim_step", json=step(run_id, 3))
    now = time.monotonic() + 60

    facts = await FactReader(context, monotonic=lambda: now).read()
    shown = (await root.http.get("server")).json()
    served.backend.let_everything_go()

    found = series_of(context.instruments.render(facts))
    assert 60 <= found["chockstone_oldest_wait_seconds"] < 120
    assert found["chockstone_queued_operations"] == shown["queue"]["operations"] == 2, "one runs, and one waits"
    assert found["chockstone_queued_samples"] == shown["queue"]["samples"] == 0
    assert found['chockstone_runs{state="ready"}'] == 1


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


@pytest.mark.parametrize("replicas", [2])
async def test_each_replica_has_its_readiness_runs_and_memory(served: Served, context: Context, ann: User) -> None:
    for _ in range(3):
        await ann.run()
    served.backends[1].is_ready = False

    found = await read(context)

    assert [found[f'chockstone_replica_ready{{replica="{number}"}}'] for number in range(2)] == [1, 0]
    assert [found[f'chockstone_replica_runs{{replica="{number}"}}'] for number in range(2)] == [2, 1]
    assert found['chockstone_replica_memory_bytes{replica="0"}'] == 1 << 20
    assert 'chockstone_replica_memory_bytes{replica="1"}' not in found, "it has sent no heartbeat"
    assert found["chockstone_worker_ready"] == 1


async def test_a_single_worker_is_no_replica(served: Served, context: Context) -> None:
    assert not [name for name in await read(context) if name.startswith("chockstone_replica")]


@pytest.mark.parametrize("gap_meter", [ScriptedGapMeter()])
async def test_weights_that_vllm_may_not_serve_are_counted(context: Context, gap_meter: ScriptedGapMeter) -> None:
    assert (await read(context))["chockstone_vllm_gaps_exceeding"] == 0
    gap_meter.exceeding = [measured(0.2), measured(0.3)]

    assert (await read(context))["chockstone_vllm_gaps_exceeding"] == 2
