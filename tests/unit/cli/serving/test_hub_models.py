from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from chockstone.api.config import ServerConfig
from chockstone.api.serving import startup
from chockstone.cli.app import app
from support.cli.hub import Hub, HubModel, loopback_hub
from support.cli.serving import serve

FILES = {"config.json": b'{"model_type": "llama"}', "tokenizer.json": b"{}", "model.safetensors": b"x" * 100}


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with loopback_hub() as hub:
        hub.models["ann/tiny"] = HubModel(dict(FILES))
        hub.use(monkeypatch, tmp_path / "cache")
        yield hub


def test_a_name_on_the_hub_is_downloaded_and_then_served_from_the_cache(
    started: list[ServerConfig], hub: Hub, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    first = serve("--model", "ann/tiny")
    said = f"model is not on this machine, downloading it model=ann/tiny hub={hub.url} "
    assert caplog.messages[0] == f"{said}missing_directory={tmp_path}/ann/tiny"
    hub.asked.clear()
    second = serve("--model", "ann/tiny")

    assert (first.exit_code, second.exit_code) == (0, 0)
    directory = tmp_path / "cache" / "models--ann--tiny" / "snapshots" / ("a" * 40)
    assert [config.models for config in started] == [{"ann/tiny": directory}] * 2
    assert f"  ann/tiny from {directory}\n" in first.stdout
    assert hub.asked == []


def test_a_directory_of_that_name_comes_first(started: list[ServerConfig], hub: Hub, tmp_path: Path) -> None:
    (tmp_path / "ann").mkdir()
    (tmp_path / "tiny").rename(tmp_path / "ann" / "tiny")

    result = serve("--model", "ann/tiny")

    assert result.exit_code == 0
    assert started[0].models == {"ann/tiny": tmp_path / "ann" / "tiny"}
    assert hub.asked == []


def test_a_missing_directory_in_one_that_exists_is_not_looked_for_on_the_hub(
    started: list[ServerConfig], hub: Hub, tmp_path: Path
) -> None:
    (tmp_path / "ann").mkdir()

    result = serve("--model", "ann/tiny")

    assert (result.exit_code, started, hub.asked) == (2, [], [])
    assert f"there is no directory '{tmp_path}/ann/tiny'. The directory '{tmp_path}/ann' exists" in result.stderr
    assert "run `chockstone model pull ann/tiny`, which downloads" in result.stderr
    pulled = CliRunner().invoke(app, ["model", "pull", "ann/tiny"], catch_exceptions=False)
    directory = tmp_path / "cache" / "models--ann--tiny" / "snapshots" / ("a" * 40)
    assert f"Serve it: chockstone serve --model ann/tiny={directory}\n" in pulled.stdout


def test_a_model_that_is_nowhere_ends_the_start_with_what_to_do(
    started: list[ServerConfig], hub: Hub, tmp_path: Path
) -> None:
    result = serve("--model", "ann/other")

    assert (result.exit_code, result.stdout, started) == (2, "", [])
    for part in (
        f"chockstone: cannot serve the model 'ann/other': there is no directory '{tmp_path}/ann/other', and the ",
        f"It was not downloaded: the hub {hub.url} has no model 'ann/other' that you may read",
        "Run `chockstone model pull ann/other` where a hub can be reached, set HF_ENDPOINT to another hub, or name a",
        "--model ann/other=DIRECTORY",
    ):
        assert part in result.stderr


def test_nothing_is_downloaded_for_a_server_whose_port_is_taken(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(startup, "configure_process", lambda _: None)  # which sets up logging for a process
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])

        result = serve("--model", "ann/tiny", "--port", port, "--data", str(tmp_path / "data"))

    assert (result.exit_code, result.stdout) == (1, "")
    assert f"chockstone: cannot listen on 127.0.0.1:{port}: another program listens there" in result.stderr
    assert hub.asked == []
