"""How replicas join a running server is in ``tests/sdk/test_replicas.py``: it takes real workers."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from chockstone.api.serving import startup
from chockstone.api.serving.startup import Prepared, further_worker_config, worker_configs
from chockstone.api.serving.workers import ServerWorkers
from chockstone.backends.ray.backend import RayBackend
from chockstone.backends.supervision.local import LocalBackend
from chockstone.checkpoints import open_store
from chockstone.engine.replicas.replica_set import ReplicaSet
from support.api.server_configs import default_config


def prepared_for(home: Path, replicas: int, **facts: Any) -> tuple[Any, Prepared]:
    config = default_config(home, replicas=replicas, **facts)
    claim = SimpleNamespace(lock=0)
    return config, cast("Prepared", SimpleNamespace(worker_configs=worker_configs(config), worker=None, claim=claim))


def workers_of(home: Path, replicas: int) -> ServerWorkers:
    config, prepared = prepared_for(home, replicas)
    return ServerWorkers(
        config, prepared, on_lost=lambda *_: None, on_fatal=lambda _: None, on_not_added=lambda *_: None
    )


@pytest.mark.parametrize("replicas", [0, 2])
async def test_with_replicas_more_may_join(tmp_path: Path, replicas: int) -> None:
    made = await workers_of(tmp_path, replicas).open(open_store(tmp_path / "store"))

    assert isinstance(made, ReplicaSet)
    assert made.can_grow
    assert len(made.replicas) == max(1, replicas)


async def test_one_worker_is_itself(tmp_path: Path) -> None:
    assert isinstance(await workers_of(tmp_path, 1).open(open_store(tmp_path / "store")), LocalBackend)


async def test_on_ray_each_replica_is_a_group_with_the_same_settings(tmp_path: Path) -> None:
    config, prepared = prepared_for(tmp_path, 2, backend="ray", ray_address="127.0.0.1:6379")
    workers = ServerWorkers(
        config, prepared, on_lost=lambda *_: None, on_fatal=lambda _: None, on_not_added=lambda *_: None
    )

    made = await workers.open(open_store(tmp_path / "store"))

    assert isinstance(made, ReplicaSet)
    assert [type(each) for each in made.replicas] == [RayBackend] * 2
    first, second = prepared.worker_configs
    assert first == second == further_worker_config(config, prepared, 2)
    assert not first.threads, "the cluster says how many cores a worker has"


def test_a_replica_that_joins_has_the_settings_of_the_others_and_the_next_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(startup, "visible_gpus", lambda _: ["4", "5", "6"])
    config, prepared = prepared_for(tmp_path, 2, threads=3)

    joined = [further_worker_config(config, prepared, number) for number in range(5)]

    assert [each.gpu for each in joined] == ["4", "5", "6", "4", "5"]
    assert {each.threads for each in joined} == {3}
