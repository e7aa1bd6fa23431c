"""MLflow, asked through its own client what it has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from chockstone.trackers.mlflow_tracker import MlflowTracker
from support.trackers import checkpoint, facts, points

pytestmark = pytest.mark.filterwarnings("ignore")  # of MLflow and the database layer under it


@pytest.fixture(autouse=True)
def no_other_store(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("mlflow")  # shared: making the tables of a store takes seconds


@pytest.fixture
def client(directory: Path) -> Any:
    from mlflow import MlflowClient

    return MlflowClient(f"sqlite:///{directory / 'mlflow.db'}")


def runs(client: Any, run_id: str) -> list[Any]:
    experiment = client.get_experiment_by_name("chockstone")
    found: list[Any] = client.search_runs([experiment.experiment_id], f"tags.`chockstone.run_id` = '{run_id}'")
    return found


def test_points_settings_and_checkpoints_are_in_one_run(directory: Path, client: Any) -> None:
    run = facts("a:train:0")
    tracker = MlflowTracker(directory)
    tracker.open(facts("a:train:0", learning_rate=None))
    tracker.open(run)
    tracker.log(run, points(1, 4))
    tracker.saved(run, [checkpoint(1), checkpoint(2), checkpoint(2, "sampler_weights")])

    (found,) = runs(client, run.run_id)

    losses = client.get_metric_history(found.info.run_id, "loss")
    assert sorted((metric.step, metric.value) for metric in losses) == [(0, 1.0), (1, 2.0), (1, 3.0), (2, 4.0)]
    assert losses[0].timestamp == 1_800_000_001_000
    assert found.data.params["rank"] == "8"
    assert found.data.params["learning_rate"] == "0.0001"
    assert found.data.params["metadata.task"] == "sums"
    assert found.data.tags["checkpoint.weights"].endswith("/weights/step-2")
    assert found.data.tags["mlflow.user"] == "ann"
    assert found.info.status == "RUNNING"
    assert len(client.get_metric_history(found.info.run_id, "checkpoint/weights")) == 2
    tracker.shut_down()
    assert runs(client, run.run_id)[0].info.status == "FINISHED"


def test_the_next_process_continues_the_run_and_keeps_its_settings(directory: Path, client: Any) -> None:
    first, second = MlflowTracker(directory), MlflowTracker(directory)
    first.open(facts("b:train:0"))
    first.log(facts("b:train:0"), points(1, 2))
    first.shut_down()

    later = facts("b:train:0", learning_rate=0.5)  # MLflow refuses to change a parameter
    second.open(later)
    second.log(later, points(3, 4))

    (found,) = runs(client, "b:train:0")
    values = {metric.value for metric in client.get_metric_history(found.info.run_id, "loss")}
    assert values == {1.0, 2.0, 3.0, 4.0}
    assert found.info.status == "RUNNING"
    assert found.data.params["learning_rate"] == "0.0001"
    second.shut_down()


def test_names_and_metadata_of_hostile_clients_are_taken(directory: Path, client: Any) -> None:
    from chockstone.trackers.tracker import TrackedPoint

    run = facts("c:train:0", metadata={"a/../b\n": "x" * 10_000, "é": "'; --"}, base_model="m" * 5000)
    tracker = MlflowTracker(directory)
    tracker.open(run)
    names = ("../up", "/abs", "a//b", "x:y", "_z", "step", ".", "w" * 64)
    tracker.log(run, [TrackedPoint(1, 1_800_000_000.0, 0, dict.fromkeys(names, 1.0))])

    (found,) = runs(client, run.run_id)
    assert len(found.data.metrics) == len(names)
    tracker.shut_down()


def test_more_points_than_one_call_takes_are_sent_in_several(directory: Path, client: Any) -> None:
    run = facts("d:train:0")
    tracker = MlflowTracker(directory)
    tracker.open(run)
    tracker.log(run, points(1, 600))

    (found,) = runs(client, run.run_id)
    assert len(client.get_metric_history(found.info.run_id, "loss")) == 600
    tracker.shut_down()
