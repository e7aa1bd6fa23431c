"""The metrics of a run, through the real SDK and a real server: complete after kills, and the same as without."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import tinker

from faults.crashes import RestartedServer, until
from sdk.making import ADAM, batch, create, datum
from support.api_replicas import LiveReplica
from support.live import LiveServer

STEPS = 8
Connect = Callable[..., tinker.ServiceClient]


@pytest.fixture(scope="module")
def engine(models: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[RestartedServer]:
    home = tmp_path_factory.mktemp("engine")
    with RestartedServer(models, home, "--recovery-steps=3", is_executed=False) as server:
        yield server


def train(run: tinker.TrainingClient, first: int = 0, last: int = STEPS) -> list[float]:
    """Ask for all steps at once; the losses that the SDK gets."""
    passes = []
    for number in range(first, last):
        passes.append(run.forward_backward(batch(number), "cross_entropy"))
        stepped = run.optim_step(ADAM)
    stepped.result()
    return [each.result().metrics["loss:sum"] for each in passes]


def read(server: LiveServer, run_id: str) -> list[dict[str, Any]]:
    with server.http() as http:
        page = http.get(f"training_runs/{run_id}/metrics", params={"limit": 10_000}).json()
    assert not page["has_more"]
    return list(page["points"])


def repeated(points: list[dict[str, Any]]) -> list[Any]:
    """What is the same in every run of the same seed: all but times."""
    return [
        (each["position"], each["step"], each["source"], {**each["values"], "seconds": None})
        for each in points
        if each["source"] == "server"
    ]


def test_metrics_are_the_numbers_of_each_operation(live: LiveServer, service: tinker.ServiceClient) -> None:
    run = create(service)
    data = [datum(1, weights=[0.0] * 8 + [0.5] * 8), datum(2, length=8)]
    losses = [run.forward_backward(data, "cross_entropy").result().metrics["loss:sum"] for _ in range(2)]
    stepped = run.optim_step(ADAM).result().metrics
    run.forward(data, "cross_entropy").result()

    first, second, third = read(live, run.model_id)
    with live.http() as http:
        listed = http.get(f"runs/{run.model_id}").json()
        for_sdk = http.get(f"training_runs/{run.model_id}").json()

    for each, loss in ((first, losses[0]), (second, losses[1])):
        assert each["values"]["loss:sum"] == loss
        assert each["values"]["loss"] == loss / 12  # eight halves and eight
        assert each["values"]["tokens"] == 24
        assert each["values"]["seconds"] > 0
        assert each["step"] == 0
    assert third["step"] == 1
    assert third["values"]["learning_rate"] == stepped["learning_rate"] == 1e-2
    assert third["values"]["grad_norm"] == stepped["grad_norm"] > 0
    assert first["at"] <= second["at"] <= third["at"]
    assert listed["loss"] == for_sdk["last_loss"] == second["values"]["loss"], "lists show the loss of the curve"


def test_kills_lose_no_point_and_repeat_none(
    live: LiveServer, service: tinker.ServiceClient, engine: RestartedServer, connect: Connect
) -> None:
    undisturbed = create(service)
    losses = train(undisturbed)
    expected = repeated(read(live, undisturbed.model_id))
    assert len(expected) == 2 * STEPS
    assert [values["loss:sum"] for *_, values in expected[::2]] == losses

    run = create(connect(engine))
    train(run, 0, 4)
    asked = [run.forward_backward(batch(4), "cross_entropy"), run.optim_step(ADAM)]
    deaths = len(engine.deaths)
    engine.kill_both()  # with operations under way, and points that are in no file yet
    engine.wait_for_next(deaths + 1)
    asked[-1].result()
    train(run, 5, 7)
    engine.kill_both()
    engine.wait_for_next(deaths + 2)
    train(run, 7)

    assert repeated(read(engine, run.model_id)) == expected


def test_a_replica_forwards_metrics_and_their_stream(engine: RestartedServer, connect: Connect, tmp_path: Path) -> None:
    run = create(connect(engine))
    train(run, 0, 1)
    path = f"training_runs/{run.model_id}/metrics"
    with LiveReplica(engine, tmp_path / "replica") as replica, replica.http() as http:
        until(lambda: http.get("healthz").is_success, "the replica answers")
        assert http.get(path).json()["points"] == read(engine, run.model_id)
        with http.stream("GET", f"{path}/stream", headers={"Last-Event-ID": "1"}) as stream:
            lines = stream.iter_lines()
            assert next_points(lines) == [2]
            points = {"points": [{"step": 1, "values": {"reward": 0.5}}]}
            with replica.http() as other:
                assert other.post(path, json=points).json() == {"cursor": 3}
            assert next_points(lines) == [3]
        assert http.get(path, params={"format": "csv"}).text.count("\n") == 4


def next_points(lines: Iterator[str]) -> list[int]:
    data = next(line for line in lines if line.startswith("data: "))
    return [each["position"] for each in json.loads(data.removeprefix("data: "))]


def test_a_stopping_server_ends_its_streams(engine: RestartedServer, connect: Connect) -> None:
    run = create(connect(engine))
    path = f"training_runs/{run.model_id}/metrics"
    deaths = len(engine.deaths)
    with engine.http() as http:
        http.post(path, json={"points": [{"step": 1, "values": {"reward": 0.5}}]}).raise_for_status()
        with http.stream("GET", f"{path}/stream") as stream:
            lines = stream.iter_lines()
            assert next_points(lines) == [1]

            engine.interrupt()

            assert not [line for line in lines if line.startswith("data: ")]
    engine.wait_for_next(deaths + 1)
    assert engine.deaths[-1] == 0
    until(lambda: "reward" in read_when_up(engine, run.model_id), "the next server has the point")


def read_when_up(server: LiveServer, run_id: str) -> str:
    try:
        return str(read(server, run_id))
    except httpx.TransportError:
        return ""
