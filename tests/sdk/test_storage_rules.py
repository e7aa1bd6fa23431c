"""Storage that looks after itself: quotas, retention, the trash and the doctor, on servers started with rules."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from typing import Any

import pytest
import tinker
from tinker import types

from sdk.checkpoints import archive_of, archives, listed, url_of
from sdk.making import batch, create, rest_client, step, train
from support.live import SERVER_PYTHON, LiveServer

Connect = Callable[..., tinker.ServiceClient]
Start = Callable[..., LiveServer]


def chockstone(server: LiveServer, *words: str, code: int | None = 0) -> subprocess.CompletedProcess[str]:
    result = subprocess.run(
        [SERVER_PYTHON, "-m", "chockstone.cli", *words], env=server.env(), capture_output=True, text=True, timeout=60
    )
    assert code is None or result.returncode == code, result.stdout + result.stderr
    return result


def test_a_save_over_the_quota_is_refused_before_a_byte_is_written(start_server: Start, connect: Connect) -> None:
    server = start_server("--run-quota", "2MB")
    run = create(connect(server), rank=8)
    rest = rest_client(server)
    saved: list[str] = []
    with pytest.raises(tinker.RequestFailedError) as refused:
        saved.extend(run.save_state(f"s{number}").result().path for number in range(100))

    assert saved
    assert refused.value.category == types.RequestErrorCategory.User
    assert "2000000" in refused.value.message.replace(",", "")
    assert "chockstone" in refused.value.message  # the command that frees space
    assert listed(rest, run.model_id) == archives(server, run.model_id) == {f"weights/s{n}" for n in range(len(saved))}
    assert not list((server.data / "checkpoints" / ".partial").glob("*"))
    rest.delete_checkpoint_from_tinker_path(saved[0]).result()
    assert run.save_state("fits").result()
    assert train(run, 1)


def test_retention_keeps_the_last_ones(start_server: Start, connect: Connect) -> None:
    server = start_server("--keep-last", "2")
    run = create(connect(server))
    for number in range(5):
        run.save_state(f"s{number}").result()
    with server.http() as http:
        planned = http.post("sweep", json={"dry_run": True}).json()
        before = archives(server, run.model_id)
        done = http.post("sweep", json={"dry_run": False}).json()

    assert len(before) >= 2
    assert {each["tinker_path"] for each in planned["removed"]} >= {each["tinker_path"] for each in done["removed"]}
    assert archives(server, run.model_id) == {"weights/s3", "weights/s4"} == listed(rest_client(server), run.model_id)


def test_a_policy_of_a_run_wins(live: LiveServer, service: tinker.ServiceClient) -> None:
    server = live
    short, long = create(service), create(service)
    for run in (short, long):
        for number in range(4):
            run.save_state(f"s{number}").result()

    chockstone(server, "policy", "set", "--run", short.model_id, "--keep-last", "1")
    dry = chockstone(server, "checkpoints", "gc", "--dry-run").stdout
    assert len(archives(server, short.model_id)) == 4
    chockstone(server, "checkpoints", "gc")

    assert "s0" in dry
    assert archives(server, short.model_id) == {"weights/s3"}
    assert len(archives(server, long.model_id)) == 4


def test_the_trash_gives_back_what_was_deleted(start_server: Start, connect: Connect) -> None:
    server = start_server("--trash", "1h")
    service = connect(server)
    run = create(service)
    train(run, 2)
    path = run.save_state("regretted").result().path
    rest = rest_client(server)

    rest.delete_checkpoint_from_tinker_path(path).result()
    assert listed(rest, run.model_id) == set()
    with pytest.raises(tinker.NotFoundError):
        service.create_training_client_from_state(path)
    chockstone(server, "trash", "undelete", path)

    resumed = service.create_training_client_from_state_with_optimizer(path)
    assert train(resumed, 1, start=2) == train(run, 1, start=2)


@pytest.mark.soak
def test_a_lost_database_is_rebuilt_from_the_store(start_server: Start, connect: Connect) -> None:
    server = start_server()
    with tinker.ServiceClient(base_url=server.url, api_key=server.key) as service:
        run = create(service)
        train(run, 2)
        path = run.save_state("kept", user_metadata={"note": "held"}).result().path
        sampler = run.save_weights_for_sampler("sampled").result().path
        copied = rest_client(server).copy_weights(path, "p").result()
        expected = train(run, 2, start=2)
    server.kill()
    server.lose_catalog()

    chockstone(server, "doctor", "--data", str(server.data), "--rebuild", "--yes")
    server.start()

    rest = rest_client(server)
    assert listed(rest, run.model_id) == {"weights/kept", "sampler_weights/sampled"}
    resumed = connect(server).create_training_client_from_state_with_optimizer(path)
    assert train(resumed, 2, start=2) == expected
    again = connect(server).create_training_client_from_state_with_optimizer(copied)
    assert train(again, 2, start=2) == expected
    assert connect(server).create_sampling_client(model_path=sampler)


def test_the_doctor_finds_what_is_wrong(start_server: Start) -> None:
    server = start_server()
    with tinker.ServiceClient(base_url=server.url, api_key=server.key) as service:
        run = create(service)
        paths = [run.save_state(name).result().path for name in ("fine", "gone", "hurt")]
    archive_of(server, paths[1]).unlink()
    archive_of(server, paths[2]).flip()
    server.stop()

    found: Any = json.loads(chockstone(server, "doctor", "--data", str(server.data), "--full", "--json", code=1).stdout)
    chockstone(server, "doctor", "--data", str(server.data), "--full", "--fix", "--yes", code=None)
    server.start()

    text = json.dumps(found)
    assert "weights/gone" in text
    assert "weights/hurt" in text
    assert "weights/fine" not in text
    with server.http() as http:
        states = {
            each["tinker_path"]: each["state"]
            for each in http.get(f"training_runs/{run.model_id}/checkpoints").json()["checkpoints"]
        }
        assert http.get(url_of(paths[0], "archive")).status_code == 302
    assert states == {paths[0]: "ready", paths[2]: "damaged"}


def test_keys_come_and_go_without_a_restart(start_server: Start, connect: Connect) -> None:
    server = start_server("--key", "ann=tml-of-ann", key="tml-of-ann")
    made = json.loads(chockstone(server, "keys", "create", "bob", "--data", str(server.data), "--json").stdout)

    with server.http(made["key"]) as http:
        assert _eventually(lambda: http.get("training_runs").status_code, 200)
        chockstone(server, "keys", "revoke", made["key_id"], "--data", str(server.data))
        assert _eventually(lambda: http.get("training_runs").status_code, 401)
    step(create(connect(server)), batch(0))


def _eventually(look: Callable[[], int], wanted: int) -> bool:
    import time

    deadline = time.monotonic() + 30
    while look() != wanted:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True
