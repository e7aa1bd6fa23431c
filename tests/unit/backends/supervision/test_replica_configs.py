from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from chockstone.backends.supervision.process import WorkerConfig
from chockstone.backends.supervision.replica_configs import MOST_REPLICAS, further_config, replica_configs
from chockstone.cli.settings.settings import SettingsError
from chockstone.cli.settings.sources import load_settings
from chockstone.engine.runs.recovery import membership

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


def test_auto_has_a_maximum() -> None:
    gpus = [str(number) for number in range(100)]

    assert len(replica_configs(CONFIG, 0, cores=512, gpus=gpus)) == MOST_REPLICAS


def test_the_maximum_is_that_of_the_setting_and_of_a_running_server() -> None:
    assert membership._MOST_MEMBERS == MOST_REPLICAS
    assert load_settings({"replicas": MOST_REPLICAS}, environment={}, working_directory=Path.cwd())
    with pytest.raises(SettingsError, match="64"):
        load_settings({"replicas": MOST_REPLICAS + 1}, environment={}, working_directory=Path.cwd())


def test_a_replica_that_joins_gets_what_a_larger_server_would_have_given_it() -> None:
    configs = replica_configs(CONFIG, 2, cores=8, gpus=["0", "1", "2"])

    assert further_config(configs, 1, gpus=["0", "1", "2"]) == configs[1]
    assert further_config(configs, 2, gpus=["0", "1", "2"]) == replace(configs[0], gpu="2")
    assert further_config(configs, 2) == replace(configs[0], gpu=None)
