from __future__ import annotations

import pytest

from chockstone.backends.supervision.process import WorkerConfig
from chockstone.backends.supervision.replica_configs import replica_configs

CONFIG = WorkerConfig(models={"tiny": "/models/tiny"}, store="/store")


@pytest.mark.parametrize(("replicas", "gpus"), [(1, []), (1, ["0", "1"]), (0, []), (0, ["3"])])
def test_a_single_replica_has_the_settings_as_they_are(replicas: int, gpus: list[str]) -> None:
    assert replica_configs(CONFIG, replicas, cores=8, gpus=gpus) == (CONFIG,)


@pytest.mark.parametrize(("cores", "threads"), [(8, 2), (9, 2), (2, 1)])
def test_replicas_divide_the_cores_evenly(cores: int, threads: int) -> None:
    assert [each.threads for each in replica_configs(CONFIG, 4, cores=cores)] == [threads] * 4


def test_a_number_of_threads_is_that_of_each_replica() -> None:
    config = WorkerConfig(models={}, store="/store", threads=3)

    assert [each.threads for each in replica_configs(config, 2, cores=64)] == [3, 3]


def test_auto_is_one_replica_for_each_gpu() -> None:
    assert [each.gpu for each in replica_configs(CONFIG, 0, cores=8, gpus=["4", "GPU-a"])] == ["4", "GPU-a"]


def test_more_replicas_than_gpus_take_them_in_turn() -> None:
    assert [each.gpu for each in replica_configs(CONFIG, 3, cores=8, gpus=["0", "1"])] == ["0", "1", "0"]
