"""Starting and stopping: soon there, and gone without losing what was running."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import tinker

from sdk.making import ADAM, create, datum, train
from support.live import LiveServer

Connect = Callable[..., tinker.ServiceClient]
LONG = [datum(number, length=500) for number in range(48)]  # seconds of work, in several micro-batches


@pytest.fixture
def server(start_server: Callable[..., LiveServer]) -> LiveServer:
    return start_server()


@pytest.fixture
def run(server: LiveServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[tinker.TrainingClient]:
    """A run that has worked once. There will be no server to say goodbye to, nor one that takes telemetry."""
    monkeypatch.setenv("TINKER_TELEMETRY", "0")
    service = tinker.ServiceClient(base_url=server.url, api_key=server.key)
    run: Any = create(service)
    train(run, 1)
    yield run
    service.holder.close()


def acknowledged(run: tinker.TrainingClient) -> None:
    """Until the server has taken all that was submitted."""
    deadline = time.monotonic() + 30
    while run._turn_counter < run._request_id_counter:
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_the_api_answers_without_torch_and_soon(models: dict[str, Path], tmp_path: Path) -> None:
    """Two seconds are the benchmark's to measure, on a machine of its own; here it is the work that is counted."""
    with LiveServer(models, tmp_path, is_executed=True) as server:  # it has answered by now
        fields = Path(f"/proc/{server.pid}/stat").read_text().rpartition(")")[2].split()
        seconds = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        libraries = Path(f"/proc/{server.pid}/maps").read_text()

    assert "libtorch" not in libraries
    assert seconds < 4  # of processor time; a neighbour that is busy doubles it


def test_what_runs_is_finished_and_what_waits_is_done_by_the_next_server(
    server: LiveServer, run: tinker.TrainingClient
) -> None:
    running = run.forward_backward(LONG, "cross_entropy")
    waiting = run.optim_step(ADAM)
    acknowledged(run)

    server.interrupt()
    while "stopping" not in server.log():
        time.sleep(0.01)
    with server.http() as http:
        late = http.post("optim_step", json={"model_id": run.model_id, "seq_id": 99, "adam_params": {}})

    assert late.status_code == 503
    assert late.headers["retry-after"]
    assert "shutting down" in late.json()["detail"]
    assert len(running.result().loss_fn_outputs) == len(LONG)
    assert server.wait() == 0
    assert "Traceback" not in server.log()
    server.start()
    assert waiting.result(60) is not None


def test_a_second_signal_ends_it_at_once(server: LiveServer, run: tinker.TrainingClient) -> None:
    run.forward_backward(LONG, "cross_entropy")
    acknowledged(run)
    server.interrupt()
    time.sleep(0.2)
    assert server.is_running()

    started = time.monotonic()
    server.interrupt()
    code = server.wait(10)

    assert time.monotonic() - started < 2
    assert code == 130


def test_a_save_that_runs_is_finished_and_there_in_the_next_life(
    server: LiveServer, run: tinker.TrainingClient, connect: Connect
) -> None:
    saving = run.save_state("at-the-end")
    acknowledged(run)

    server.interrupt(signal.SIGTERM)

    path = saving.result().path
    assert path == f"tinker://{run.model_id}/weights/at-the-end"
    assert server.wait() == 0
    server.start()
    service = connect(server)
    resumed = service.create_training_client_from_state_with_optimizer(path)
    undisturbed = create(service)
    train(undisturbed, 1)
    expected = train(undisturbed, 2, start=1)
    assert train(resumed, 2, start=1) == expected
    assert train(run, 2, start=1) == expected  # it never was away


def test_two_servers_do_not_share_a_directory(live: LiveServer, models: dict[str, Path]) -> None:
    second = LiveServer(models, live.home, "--port", live.url.rpartition(":")[2])

    code = second.launch().wait(30)

    assert code == 1
    assert f"another server uses the data directory '{live.data}'. It is process {live.pid}" in live.log()
    assert "another program listens there; stop it, or choose another port with --port" in live.log()
    assert live.is_running()
