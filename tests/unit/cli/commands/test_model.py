from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from chockstone.cli.app import app
from chockstone.cli.models.directory import count_parameters
from support.cli.hub import HubModel, loopback_hub

pytest.importorskip("tokenizers")  # `model make` is no part of the plain install


def run(*words: str | Path) -> Result:
    return CliRunner().invoke(app, ["model", "make", *map(str, words)], catch_exceptions=False)


def test_the_command_says_what_it_wrote_and_how_to_serve_it(tmp_path: Path) -> None:
    result = run(tmp_path / "tiny", "--architecture", "llama", "--size", "2.5M", "--vocab", "300", "--seed", "3")

    assert result.exit_code == 0
    assert "model.safetensors" in result.stdout
    assert f"{count_parameters(tmp_path / 'tiny'):,} random parameters" in result.stdout
    assert "300 tokens" in result.stdout
    assert f"chockstone serve --model tiny={tmp_path}/tiny\n" in result.stdout
    assert result.stderr == ""


def test_a_directory_that_holds_something_is_left_alone_unless_forced(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")

    refused = run(tmp_path)
    forced = run(tmp_path, "--force")

    assert (refused.exit_code, refused.stdout) == (2, "")
    assert "is not empty: it holds 'notes.txt'" in refused.stderr
    assert "--force" in refused.stderr
    assert forced.exit_code == 0
    assert (tmp_path / "notes.txt").read_text() == "mine"
    assert (tmp_path / "config.json").exists()
    assert not list(tmp_path.glob("*.partial"))


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    result = run(tmp_path / "file" / "model")

    assert result.exit_code == 2
    assert f"cannot write a model to '{tmp_path}/file/model': Not a directory" in result.stderr


@pytest.mark.parametrize("size", ["7", "0.5M", "301M", "1G", "big", ""])
def test_a_size_out_of_range_is_refused(tmp_path: Path, size: str) -> None:
    result = run(tmp_path / "m", "--size", size)

    assert result.exit_code == 2
    assert "is not a size from 1M to 300M" in result.stderr


def test_making_a_model_needs_no_torch(tmp_path: Path) -> None:
    code = f"""
import sys
from chockstone.cli.models.making import make_model
make_model({str(tmp_path / "m")!r})
print({{"torch", "transformers", "typer"}} & set(sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout == "set()\n"


def test_a_model_is_pulled_from_the_hub_of_the_environment(tmp_path: Path) -> None:
    files = {"config.json": b'{"model_type": "llama"}', "tokenizer.json": b"{}", "model.safetensors": b"x" * 100}
    with loopback_hub() as hub:
        hub.models["ann/tiny"] = HubModel(files, revisions={"main": "a" * 40, "v2": "b" * 40}, token="hf_secret")
        environment = {**os.environ, **hub.environment(tmp_path / "home"), "HF_TOKEN": "hf_secret"}
        environment.pop("HF_HUB_CACHE", None)

        def pull(*words: str, **changes: str) -> subprocess.CompletedProcess[str]:
            command = [sys.executable, "-m", "chockstone.cli", "model", "pull", *words]
            return subprocess.run(command, env=environment | changes, capture_output=True, text=True)

        pulled = pull("ann/tiny", "--revision", "v2")
        refused = pull("ann/tiny", HF_HUB_OFFLINE="1")

    directory = tmp_path / "home" / "hub" / "models--ann--tiny" / "snapshots" / ("b" * 40)
    assert (pulled.returncode, pulled.stderr) == (0, "")
    assert pulled.stdout.splitlines() == [
        f"ann/tiny is in {directory}",
        f"Serve it: chockstone serve --model ann/tiny={directory}",
    ]
    assert (directory / "model.safetensors").read_bytes() == b"x" * 100
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "chockstone: model 'ann/tiny' was not downloaded: offline mode is on" in refused.stderr
