"""A server whose workers are on Ray, spoken to with the SDK: they are killed, and the client goes on."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest
import tinker
from ray_cluster import RayCluster, need_ray, ray_processes

from faults.crashes import until
from sdk.making import create, train
from sdk.test_replicas import replicas_of, wait_until_ready
from support.live import LiveServer, descendants, is_alive

need_ray()
STEPS = 3  # before and after a death
Outputs = list[Any]  # Any: as ``train`` gives them


@pytest.fixture(scope="module")
def model(models: dict[str, Path]) -> dict[str, Path]:
    return {"tiny-qwen3": models["tiny-qwen3"]}


@pytest.fixture(scope="module")
def undisturbed(model: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[int, Outputs]:
    """What a LoRA run and a full one give on one local worker."""
    with LiveServer(model, tmp_path_factory.mktemp("local")) as server, connected(server) as service:
        return {rank: train(create(service, rank=rank), 2 * STEPS) for rank in (4, 0)}


class connected:
    """A client for the time of a block."""

    def __init__(self, server: LiveServer) -> None:
        self._service = tinker.ServiceClient(base_url=server.url, api_key=server.key)

    def __enter__(self) -> tinker.ServiceClient:
        return self._service

    def __exit__(self, *_: object) -> None:
        self._service.close("success").result()


def assert_close(given: Outputs, expected: Outputs) -> None:
    for (loss, logprobs), (expected_loss, expected_logprobs) in zip(given, expected, strict=True):
        assert loss == pytest.approx(expected_loss, rel=1e-5, abs=1e-5)
        for each, other in zip(logprobs, expected_logprobs, strict=True):
            assert each == pytest.approx(other, rel=1e-5, abs=1e-5)


def kill_one(pids: list[int]) -> None:
    os.kill(pids[-1], signal.SIGKILL)


def test_a_worker_that_is_killed_costs_the_client_nothing_but_time(
    model: dict[str, Path], undisturbed: dict[int, Outputs], tmp_path: Path
) -> None:
    with LiveServer(model, tmp_path, "--backend=ray", "--workers=2", "--recovery-steps=2") as server:
        with connected(server) as service:
            runs = {rank: create(service, rank=rank) for rank in (4, 0)}
            outputs = {rank: train(run, STEPS) for rank, run in runs.items()}
            before = ray_processes(server.pid)

            kill_one(before)
            for rank, run in runs.items():
                outputs[rank] += train(run, STEPS, start=STEPS)

            after = ray_processes(server.pid)
            recoveries = [server.http().get(f"training_runs/{run.model_id}/recoveries").json() for run in runs.values()]
    for rank, expected in undisturbed.items():
        assert_close(outputs[rank], expected)
    assert len(before) == len(after) == 2
    assert not set(before) & set(after)
    assert all("worker" in each["recoveries"][0]["reason"] for each in recoveries)
    assert "died" in server.log()  # and it has stopped by now, with nothing left of it


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_a_node_that_is_lost_leaves_fewer_workers_and_the_client_goes_on(
    model: dict[str, Path], undisturbed: dict[int, Outputs], tmp_path: Path
) -> None:
    with RayCluster(tmp_path) as cluster:
        node = cluster.add()
        flags = ["--backend=ray", "--workers=2", "--min-workers=1", f"--ray-address={cluster.address}"]
        with LiveServer(model, tmp_path / "server", *flags, "--recovery-steps=2") as server:
            with connected(server) as service:
                run = create(service)
                outputs = train(run, STEPS)
                assert len(ray_processes(cluster.pid)) == 2

                cluster.remove(node)
                outputs += train(run, STEPS, start=STEPS)

                assert len(ray_processes(cluster.pid)) == 1
        assert ray_processes(cluster.pid) == []  # the server has left, the cluster runs on

    assert_close(outputs, undisturbed[4])
    assert re.findall(r"workers placed workers=(\d)", server.log()) == ["2", "1"]


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_a_node_that_is_lost_while_runs_move_costs_the_clients_nothing_but_time(
    model: dict[str, Path], undisturbed: dict[int, Outputs], tmp_path: Path
) -> None:
    """Two replicas, each a group of one worker on a node of its own. Which of them is lost is not known here: the one
    that is drained, and its runs are recovered, or the other one, and the runs that have moved return."""
    with RayCluster(tmp_path) as cluster:
        node = cluster.add()
        flags = ["--backend=ray", "--replicas=2", f"--ray-address={cluster.address}", "--recovery-steps=2"]
        with LiveServer(model, tmp_path / "server", *flags) as server:
            wait_until_ready(server, 2)
            with connected(server) as service:
                runs = [create(service, rank=4) for _ in range(4)]
                outputs = [train(run, STEPS) for run in runs]
                assert [each["runs"] for each in replicas_of(server)] == [2, 2]

                with server.http() as http:
                    assert http.post("replicas/0/drain").status_code == 200
                cluster.remove(node)
                for run, before in zip(runs, outputs, strict=True):
                    before += train(run, STEPS, start=STEPS)

                assert len(ray_processes(cluster.pid)) == 1
                answers = [server.http().get(f"training_runs/{run.model_id}/recoveries").json() for run in runs]
    for given in outputs:
        assert given == outputs[0]
        assert_close(given, undisturbed[4])
    assert sum(each["mismatched"] for answer in answers for each in answer["recoveries"]) == 0


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("end", ["killed", "interrupted twice"])
def test_a_server_that_ends_at_once_takes_ray_with_it_and_the_next_one_goes_on(
    model: dict[str, Path], undisturbed: dict[int, Outputs], tmp_path: Path, end: str
) -> None:
    with LiveServer(model, tmp_path, "--backend=ray", "--recovery-steps=2") as server:
        with connected(server) as service:
            run = create(service)
            outputs = train(run, STEPS)
            family = descendants(server.pid)

            if end == "killed":
                os.kill(server.pid, signal.SIGKILL)
                assert server.wait() == -signal.SIGKILL
            else:
                server.interrupt()
                server.interrupt()
                assert server.wait() == 130
            until(lambda: not any(map(is_alive, family)), "all of Ray has ended", seconds=20)
            server.start()
            outputs += train(run, STEPS, start=STEPS)
    assert_close(outputs, undisturbed[4])
