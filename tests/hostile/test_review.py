"""What a server must survive that no client does on purpose: its own death, bad files, large bodies of small things."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import httpx
import pytest

from hostile.strangers import Stranger, check_failure, check_refusal
from support.live import LiveServer


def test_a_worker_does_not_outlive_its_server_for_work_that_nobody_waits_for(
    models: dict[str, Path], tmp_path: Path
) -> None:
    server = LiveServer(models, tmp_path)
    server.start()
    with server.http() as http:
        stranger = Stranger.meet(http)
        body = {
            "sampling_session_id": stranger.open_sampler(),
            "num_samples": 256,
            "prompt": {"chunks": [{"tokens": [5]}]},
        }
        for number in range(40):
            long = {"max_tokens": 400, "stop": []}
            assert http.post("asample", json=body | {"seq_id": number, "sampling_params": long}).status_code == 200

    server.interrupt(signal.SIGKILL)

    assert server.wait() == -signal.SIGKILL, "and its worker was gone within seconds"


@pytest.mark.parametrize("file", ["catalog.sqlite3", "token-secret"])
def test_a_damaged_file_is_named_and_nothing_is_started(models: dict[str, Path], tmp_path: Path, file: str) -> None:
    server = LiveServer(models, tmp_path)
    server.data.mkdir(parents=True)
    (server.data / file).write_bytes(b"not what it was " if file.startswith("t") else os.urandom(9000))

    assert server.launch().wait(30) == 1
    assert file in server.log()
    assert "Traceback" not in server.log()


def test_modules_beside_the_user_are_not_the_workers(models: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise SystemExit('imported the wrong one')")
    with LiveServer(models, tmp_path, is_executed=True) as server, server.http() as http:
        assert Stranger.meet(http).loss() > 0


def test_a_model_whose_weights_are_damaged_ends_the_server(models: dict[str, Path], tmp_path: Path) -> None:
    damaged = tmp_path / "damaged"
    shutil.copytree(models["tiny-qwen3"], damaged)
    os.truncate(damaged / "model.safetensors", 1000)
    server = LiveServer({"damaged": damaged}, tmp_path)

    assert server.launch().wait(60) == 1
    assert "model 'damaged' cannot be loaded" in server.log()


def test_only_tensors_and_prompts_may_be_large(http: httpx.Client) -> None:
    body = b'{"sdk_version": "0.36.0", "tags": [' + b"{}," * (3 << 20) + b"{}]}"

    answer = http.post("create_session", content=body, headers={"Content-Type": "application/json"})

    assert answer.status_code == 413
    assert "larger than 8388608 bytes" in check_refusal(answer)


def test_more_alternatives_than_an_answer_holds_are_refused(http: httpx.Client) -> None:
    stranger = Stranger.meet(http)
    body = {
        "sampling_session_id": stranger.open_sampler(),
        "seq_id": 0,
        "num_samples": 4096,
        "topk_sample_logprobs": 1024,
        "prompt": {"chunks": [{"tokens": [5]}]},
        "sampling_params": {"max_tokens": 400},
    }
    assert "topk_sample_logprobs=1024" in check_failure(http, http.post("asample", json=body))


def test_what_is_anothers_and_what_is_not_there_sound_the_same(models: dict[str, Path], tmp_path: Path) -> None:
    keys = ("--key=ann=tml-ann-00000001", "--key=bob=tml-bob-00000001")
    with LiveServer(models, tmp_path, *keys, key="tml-ann-00000001") as server, server.http() as ann:
        theirs = ann.post("create_session", json={"sdk_version": "0.36.0"}).json()["session_id"]
        nobodys = "0" * len(theirs)
        with server.http("tml-bob-00000001") as bob:
            answers = [bob.get(f"sessions/{session_id}") for session_id in (theirs, nobodys)]

    assert [answer.status_code for answer in answers] == [404, 404]
    assert answers[0].text.replace(theirs, nobodys) == answers[1].text
