"""A journal that loses its end while the server is down: the client is told so, and gets no older state as if new."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import tinker
from tinker import types

from chockstone.engine.journal.scan import scan, segments_in
from faults.crashes import RestartedServer, until
from sdk.making import batch, create, step
from sdk.recoveries import _of
from support.live import LiveServer


@pytest.fixture
def server(models: dict[str, Path], tmp_path: Path) -> Iterator[RestartedServer]:
    flags = ("--recovery-steps=1000", "--recovery-replay=1h")
    with RestartedServer(models, tmp_path / "server", *flags, is_executed=False) as server:
        yield server


def cut_last_operation(server: LiveServer) -> None:
    """As a disk does that lost its last blocks, or a copy that is some seconds old."""
    [folder] = (server.data / "journal" / "runs").iterdir()
    path = segments_in(folder)[-1]
    last = [record for record in scan(path).records if record.head["kind"] == "operation"][-1]
    assert last._place is not None
    with path.open("r+b") as file:
        file.truncate(last._place.offset)


def accepted_samples(server: LiveServer) -> int:
    """How many sample requests got their ids. A client that has no id yet sends its sample again after a crash."""
    page = httpx.get(f"{server.url}/metrics", trust_env=False).text
    found = re.search(r'^chockstone_http_requests_total\{.*route="/asample".* (\S+)$', page, re.MULTILINE)
    return int(float(found[1])) if found else 0


def test_samples_whose_journal_is_gone_fail_at_once_and_say_why(server: RestartedServer) -> None:
    service = tinker.ServiceClient(base_url=server.url, api_key=server.key)
    sampler = service.create_sampling_client(base_model="tiny-qwen3")
    prompt, params = types.ModelInput.from_ints([5, 6, 7]), types.SamplingParams(max_tokens=8000, stop=[])
    sampler.sample(prompt, 1, types.SamplingParams(max_tokens=2, stop=[])).result()
    waiting = [sampler.sample(prompt, 64, params) for _ in range(2)]
    until(lambda: accepted_samples(server) == 3, "the client has the ids of its samples")
    server.hold()
    server.kill_both()
    until(lambda: bool(server.deaths), "the server is down")
    shutil.rmtree(server.data / "journal" / "samples")
    server.release()
    server.wait_for_next(1)

    for future in waiting:
        with pytest.raises(tinker.TinkerError, match="send the samples again"):
            future.result(timeout=120)

    again = service.create_sampling_client(base_model="tiny-qwen3")
    again.sample(prompt, 1, types.SamplingParams(max_tokens=2, stop=[])).result()
    service.close("success").result()


def test_a_run_whose_journal_lost_its_end_fails_by_name_and_its_receipt_says_how_much(server: RestartedServer) -> None:
    service = tinker.ServiceClient(base_url=server.url, api_key=server.key)
    run = create(service)
    step(run, batch(1))
    path = run.save_state("kept").result().path
    step(run, batch(2))  # delivered, the client goes on from here
    server.hold()
    server.kill_both()
    until(lambda: bool(server.deaths), "the server is down")
    cut_last_operation(server)
    server.release()
    server.wait_for_next(1)

    with pytest.raises(tinker.RequestFailedError, match="lost its end: 1 operation") as refused:
        run.forward_backward(batch(3), "cross_entropy").result()

    assert path in str(refused.value)
    with server.http() as http:
        [receipt] = _of(http.get(f"training_runs/{run.model_id}/recoveries"))
        lost = http.post("retrieve_future", json={"request_id": f"{run.model_id}:5"}).json()
    assert (receipt["lost"], receipt["replayed"], receipt["matched"]) == (1, 0, 0)
    assert "lost its end" in lost["error"] and lost["category"] == "server"
    resumed = service.create_training_client_from_state_with_optimizer(path)
    step(resumed, batch(2))
    command = [sys.executable, "-m", "chockstone.cli", "runs", "recoveries", run.model_id]
    told = subprocess.run(command, env=server.env(), capture_output=True, text=True, timeout=60)
    assert "1 operation lost" in told.stdout, told.stdout + told.stderr
    service.close("success").result()
