"""Experiment trackers of a live server: all four, through the SDK, with a kill in between."""

from __future__ import annotations

import json
import socket
import sqlite3
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
import tinker
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from sdk.making import create, train
from support.live import LiveServer

_EVENT_SECONDS = 120.0  # an upper bound: four trackers are imported on a busy machine
_TRACKERS = ("mlflow", "tensorboard", "trackio", "wandb")


def history(server: LiveServer, run_id: str) -> list[dict[str, float]]:
    with server.http() as http:
        return [point["values"] for point in http.get(f"training_runs/{run_id}/metrics").json()["points"]]


def wait_until_sent(server: LiveServer, run_id: str, *, saves: int) -> None:
    """Until every tracker has all points and checkpoints of the run."""
    with server.http() as http:
        cursor = http.get(f"training_runs/{run_id}/metrics").json()["cursor"]
    deadline = time.monotonic() + _EVENT_SECONDS
    for tracker in _TRACKERS:
        mark = server.data / "tracking" / "sent" / tracker / f"{run_id.replace(':', '.')}.json"
        while True:
            found = json.loads(mark.read_text()) if mark.exists() else {"position": 0, "saves": []}
            if found["position"] >= cursor and len(found["saves"]) >= saves:
                break
            assert time.monotonic() < deadline, f"{tracker} has {found} of {cursor}:\n{server.log()}"
            time.sleep(0.05)


def test_trackers_have_every_point_once_after_the_server_was_killed(
    start_server: Callable[..., LiveServer],
    connect: Callable[..., tinker.ServiceClient],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    server = start_server("--track=mlflow,tensorboard", "--track=trackio", "--track=wandb")
    run = create(connect(server), user_metadata={"name": "sums", "<b>": "x"})
    run_id = run.model_id
    train(run, 3)
    run.save_state("half").result()
    wait_until_sent(server, run_id, saves=1)

    server.kill()
    server.start()
    train(run, 2, start=3)
    wait_until_sent(server, run_id, saves=1)
    server.stop()

    server.start()  # stopped in order, the next one sends nothing again
    losses = Counter(point["loss"] for point in history(server, run_id) if "loss" in point)
    assert sum(losses.values()) == 5
    tracking = server.data / "tracking"
    assert Counter(_of_mlflow(tracking / "mlflow.db")) == losses
    assert Counter(_of_trackio(tmp_path / "trackio")) == losses
    shown = _of_tensorboard(tracking / "tensorboard")
    assert sorted(shown) == pytest.approx(sorted(losses.elements()))
    assert len(list((tracking / "wandb").glob("offline-run-*/*.wandb"))) >= 1
    with closing(sqlite3.connect(tracking / "mlflow.db")) as store:
        parameters = dict(store.execute("SELECT key, value FROM params").fetchall())
        tags = dict(store.execute("SELECT key, value FROM tags").fetchall())
        assert store.execute("SELECT count(*) FROM runs").fetchone() == (1,)
    assert parameters["base_model"] == "tiny-qwen3"
    assert parameters["rank"] == "4"
    assert parameters["learning_rate"] == "0.01"
    assert parameters["metadata.name"] == "sums"
    assert tags["checkpoint.weights"] == f"tinker://{run_id}/weights/half"


def test_a_tracker_that_never_answers_delays_neither_steps_nor_the_end(
    start_server: Callable[..., LiveServer],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=64) as silent:  # connections wait in its backlog for ever
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{silent.getsockname()[1]}")
        server = start_server("--track=mlflow")
        with tinker.ServiceClient(base_url=server.url, api_key=server.key) as service:
            run = create(service)
            train(run, 3)
            while "tracker started tracker=mlflow" not in server.log():
                time.sleep(0.01)
            train(run, 3, start=3)
            losses = [point for point in history(server, run.model_id) if "loss" in point]
        server.stop()  # its processes are gone with it

    assert len(losses) == 6
    assert "last points not sent, the next server sends them tracker=mlflow" in server.log()


def _of_mlflow(database: Path) -> list[float]:
    with closing(sqlite3.connect(database)) as store:
        return [value for (value,) in store.execute("SELECT value FROM metrics WHERE key = 'loss'")]


def _of_trackio(directory: Path) -> list[float]:
    (database,) = directory.glob("chockstone*.db")
    with closing(sqlite3.connect(database)) as store:
        rows = [json.loads(text) for (text,) in store.execute("SELECT metrics FROM metrics")]
    return [row["loss"] for row in rows if "loss" in row]


def _of_tensorboard(directory: Path) -> list[float]:
    (run,) = directory.iterdir()
    assert run.name.startswith("sums-")
    shown = EventAccumulator(str(run))
    shown.Reload()
    return [event.value for event in shown.Scalars("loss")]
