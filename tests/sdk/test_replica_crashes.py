"""Lose a replica, or restart with another number of them: scripts never notice, and their bits are the same."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from faults.crashes import OFTEN, Client, Heard, RestartedServer, assert_same, until
from sdk.recoveries import recoveries
from sdk.test_replicas import replicas_of, wait_until_ready
from support.live import LiveServer

SCRIPTS = ("sft:10", "crowd:6")  # four runs
FLAGS = (*OFTEN, "--threads=1", "--spare-worker=off")


@pytest.fixture(scope="module")
def expected(live: LiveServer, tmp_path_factory: pytest.TempPathFactory) -> Heard:
    """What the scripts hear of one worker that nobody disturbs."""
    return Client(live, tmp_path_factory.mktemp("undisturbed"), *SCRIPTS).result(with_usage=True)


@pytest.fixture
def server(models: dict[str, Path], tmp_path: Path) -> Iterator[RestartedServer]:
    with RestartedServer(models, tmp_path / "server", *FLAGS, "--replicas=2", is_executed=False) as server:
        wait_until_ready(server, 2)
        yield server


@pytest.mark.parametrize(
    ("number", "stopped"),
    [
        pytest.param(0, signal.SIGKILL, id="first", marks=pytest.mark.soak),
        pytest.param(1, signal.SIGKILL, id="second"),
        pytest.param(1, signal.SIGSTOP, id="hangs", marks=pytest.mark.soak),  # noticed after 30 s of silence
    ],
)
def test_a_lost_replica_costs_no_bit_and_the_other_stays(
    server: RestartedServer, expected: Heard, tmp_path: Path, number: int, stopped: signal.Signals
) -> None:
    workers = sorted(server.workers())
    client = Client(server, tmp_path, *SCRIPTS)
    client.wait_for(expected.count // 2)

    os.kill(workers[number], stopped)
    heard = client.result(with_usage=True)

    assert_same(heard, expected)
    assert heard.used == expected.used
    receipts = recoveries(server, heard)
    assert receipts, "the lost replica had runs"
    assert sum(receipt["mismatched"] for receipt in receipts) == 0
    assert sorted(each["restarts"] for each in replicas_of(server)) == [0, 1]
    assert workers[1 - number] in server.workers()
    assert server.deaths == []


@pytest.mark.parametrize("replicas", [1, pytest.param(3, marks=pytest.mark.soak)])
def test_a_killed_server_starts_again_with_another_number_of_replicas(
    server: RestartedServer, expected: Heard, tmp_path: Path, replicas: int
) -> None:
    client = Client(server, tmp_path, *SCRIPTS)
    client.wait_for(expected.count // 2)

    server.hold()
    server.kill_server()
    until(lambda: server.deaths == [-9], "the server has ended")
    server.use_flags(*FLAGS, f"--replicas={replicas}")
    server.release()
    heard = client.result(with_usage=True)

    assert_same(heard, expected)
    assert heard.used == expected.used
    assert sum(receipt["mismatched"] for receipt in recoveries(server, heard)) == 0
    assert len(server.workers()) == replicas
