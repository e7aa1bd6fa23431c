from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from chockstone.cli.app import app
from chockstone.cli.settings.values import ModelSetting
from support.cli.training import OWN, SMALL, run
from support.trainers.fakes import FakeServer


def test_one_command_trains_saves_and_tells_how_it_went(server: FakeServer, tmp_path: Path) -> None:
    result = run(*SMALL, "--evaluate-every", "2", "--plot", "shown.svg")

    assert result.exit_code == 0, result.output
    assert OWN[0].story == ["started", "stopped"]
    assert OWN[0].model == ModelSetting("tiny", Path("chockstone-train/model"))
    out = tmp_path / "chockstone-train"
    left = {path.name for path in out.iterdir()}
    assert left == {"metrics.jsonl", "samples.jsonl", "events.jsonl", "rewards.svg", "tensorboard", "store", "model"}
    assert (tmp_path / "shown.svg").read_bytes() == (out / "rewards.svg").read_bytes()
    said = result.stdout
    assert "Trained 4 steps of 4 on 16 samples" in said
    assert re.search(r"reward +\d\.\d{3} → \d\.\d{3}  [▁-█]{4}  best", said)
    assert re.search(r"evaluation +\d\.\d{3} at step 4, on 2 problems", said)
    assert re.search(r"saves +2 in the background, \d\.\d to \d\.\d s each", said)
    assert "state       tinker://run-1/weights/step-00000004" in said
    assert "create_sampling_client(model_path='tinker://run-1/sampler_weights/step-00000004')" in said
    assert "chockstone serve --model tiny=chockstone-train/model --data chockstone-train/server/data" in said


def test_the_command_it_names_trains_on(server: FakeServer, tmp_path: Path) -> None:
    first = run(*SMALL, "--no-tensorboard", "--export", "sampler", "--export", "hf", "--key", "tml-secret")

    [line] = [line for line in first.stdout.splitlines() if line.startswith("Train more: chockstone train ")]
    assert "tml-secret" not in line
    again = CliRunner().invoke(app, line.removeprefix("Train more: chockstone ").split(), catch_exceptions=False)

    assert again.exit_code == 0, again.output
    assert "resuming from step 4" in again.stderr
    assert "Trained 8 steps of 8" in again.stdout
    rows = [json.loads(row) for row in (tmp_path / "chockstone-train/samples.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [step for step in range(1, 9) for _ in range(4)]
    assert not (tmp_path / "chockstone-train/tensorboard").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--env", "nothing"], "there is no environment 'nothing'"),
        (["--group-size", "1"], "group_size must be a whole number from 2 on"),
        (["--export", "gguf"], "exports can be sampler and hf"),
        (["--plot", "x.png"], "must end in '.svg'"),
        (["--model", "./nowhere"], "there is no directory"),
        (["--model", "./tiny", "--server", "http://127.0.0.1:1"], "unset TINKER_BASE_URL"),
    ],
)
def test_what_cannot_be_trained_is_said_before_anything_is_started(
    server: FakeServer, words: list[str], said: str
) -> None:
    result = run(*words)

    assert result.exit_code == 2
    assert said in result.stderr
    assert (OWN, server.calls) == ([], [])


def test_without_the_sdk_it_says_what_to_install(server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tinker", None)

    result = run()

    assert result.exit_code == 2
    assert "pip install 'chockstone[train]'" in result.stderr
