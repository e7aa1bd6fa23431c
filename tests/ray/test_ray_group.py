"""The Ray backend on a cluster that runs already: what it says when that has no place for it, and what it leaves."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from ray_cluster import RayCluster, need_ray

from chockstone.backends.protocol import WorkerLost
from chockstone.backends.ray.backend import RayBackend
from chockstone.backends.ray.plan import RayPlan
from chockstone.backends.supervision.process import WorkerConfig

need_ray()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayCluster]:
    with RayCluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


async def refusal(plan: RayPlan, config: WorkerConfig) -> str:
    """Why a backend gives up before it was ever ready."""
    told: list[str] = []
    backend = RayBackend(plan, config, on_fatal=told.append)
    await backend.start()
    with pytest.raises(WorkerLost):
        await asyncio.wait_for(backend.ready(), 120)
    await backend.stop()
    [reason] = told
    return reason


async def test_a_cluster_without_enough_says_what_is_missing(cluster: RayCluster, tmp_path: Path) -> None:
    plan = RayPlan(workers=3, min_workers=2, address=cluster.address, place_seconds=1)

    reason = await refusal(plan, WorkerConfig(models={}, store=str(tmp_path), device="cpu", threads=1))

    assert reason == (
        "the Ray cluster had no place for 3 workers, nor for 2 of 1 CPU each within 1 seconds: 2 CPUs needed, 1 in the "
        "cluster, 1 of them free. Add nodes or lower --workers."
    )


async def test_what_a_node_does_not_see_is_named(cluster: RayCluster, tmp_path: Path) -> None:
    config = WorkerConfig(models={"big": "/no/such/model"}, store=str(tmp_path / "store"), device="cpu", threads=1)

    reason = await refusal(RayPlan(address=cluster.address), config)

    assert "does not see '/no/such/model' of this server" in reason
    assert list((tmp_path / "store").iterdir()) == []


async def test_a_cluster_that_is_not_there_is_named(tmp_path: Path) -> None:
    reason = await refusal(RayPlan(address="127.0.0.1:1"), WorkerConfig(models={}, store=str(tmp_path)))

    assert "the Ray cluster at '127.0.0.1:1' cannot be joined: " in reason
    assert "Connection refused" in reason


async def test_what_is_no_cluster_is_not_waited_for(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"

        reason = await refusal(RayPlan(address=address, join_seconds=1), WorkerConfig(models={}, store=str(tmp_path)))

    assert reason == f"the Ray cluster, {address!r}, did not answer as one within 1 seconds"
