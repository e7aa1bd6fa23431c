"""A server that had API keys never takes itself for a new one, whatever it lost."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import httpx

from hostile.strangers import Stranger, check_refusal, retrieve
from support.live import SERVER_PYTHON, LiveServer


def chockstone(server: LiveServer, *words: str, code: int = 0) -> str:
    command = [SERVER_PYTHON, "-m", "chockstone.cli", *words, "--data", str(server.data)]
    ran = subprocess.run(command, env=server.env(), capture_output=True, text=True, timeout=90)
    assert ran.returncode == code, ran.stdout + ran.stderr
    return ran.stdout + ran.stderr


def refused(server: LiveServer) -> str:
    """What a server says that does not start."""
    offset = len(server.log())
    assert server.launch().wait(60) in (1, 2), server.log()
    return server.log()[offset:]


def test_a_lost_catalog_is_not_taken_for_a_new_one(models: dict[str, Path], tmp_path: Path) -> None:
    server = LiveServer(models, tmp_path)
    with server, server.http() as http:
        stranger = Stranger.meet(http)
        order = {"model_id": stranger.run_id, "path": "kept", "seq_id": stranger.next_seq_id()}
        saved = retrieve(http, http.post("save_weights", json=order).json()["request_id"]).json()["path"]
    server.lose_catalog()

    assert "doctor --rebuild" in refused(server)
    if server.database is None:  # else the command knows of no store
        assert "doctor --rebuild" in chockstone(server, "keys", "create", "ann", code=3)
        assert not (server.data / "catalog.sqlite3").exists()

    chockstone(server, "doctor", "--rebuild")
    with server, server.http() as http:
        listed = http.get(f"training_runs/{stranger.run_id}/checkpoints").json()["checkpoints"]
        assert [each["tinker_path"] for each in listed] == [saved]


def test_a_server_that_had_keys_does_not_start_without(models: dict[str, Path], tmp_path: Path) -> None:
    server = LiveServer(models, tmp_path)
    with server:
        key = chockstone(server, "keys", "create", "ann").splitlines()[0]
        with server.http(key) as ann, server.http("tml-of-nobody") as stranger:
            while stranger.get("get_server_capabilities").status_code == 200:  # it takes the key in a moment
                time.sleep(0.05)
            assert ann.get("get_server_capabilities").status_code == 200
        while not (server.data / "keys-required").exists():
            time.sleep(0.05)
    server.lose_catalog()

    assert "had API keys before, and has none now" in refused(server)

    key = chockstone(server, "keys", "create", "ann").splitlines()[0]
    with server:
        answer = httpx.get(f"{server.url}/api/v1/training_runs", headers={"X-API-Key": "tml-of-nobody"})
        assert answer.status_code == 401
        assert "not known to this server" in check_refusal(answer)
        with server.http(key) as ann:
            assert ann.get("training_runs").status_code == 200


def test_a_public_url_needs_keys(models: dict[str, Path], tmp_path: Path) -> None:
    server = LiveServer(models, tmp_path, "--public-url=https://models.example.com")

    assert "'https://models.example.com' (--public-url), and no keys are configured" in refused(server)
