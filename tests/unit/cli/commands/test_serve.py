from __future__ import annotations

import re
from pathlib import Path

import pytest

from chockstone.api.config import ServerConfig
from chockstone.backends.supervision.cuda import why_no_cuda
from chockstone.cli.settings.settings import NAMES
from support.cli.serving import serve


def test_serve_starts_with_its_settings_and_says_how_to_reach_it(started: list[ServerConfig], tmp_path: Path) -> None:
    result = serve("--model", "Qwen/Qwen3-8B=tiny", "--model", "./tiny", "--port", "0", "--max-runs", "3")

    config = started[0]
    assert result.exit_code == 0
    assert list(config.models) == ["Qwen/Qwen3-8B", "tiny"]
    assert (config.port, config.limits.runs) == (0, 3)
    lines = result.stdout.splitlines()
    assert f"  Qwen/Qwen3-8B from {tmp_path}/tiny" in lines
    assert f"data in {tmp_path}/chockstone-data" in lines
    assert "export TINKER_BASE_URL=http://127.0.0.1:4321" in lines
    assert "export TINKER_API_KEY=tml-local" in lines


@pytest.mark.parametrize("word", ["loss:sideways", "loss:3", "loss:min:0", "loss:", "loss:Max"])
def test_a_best_that_says_neither_least_nor_most_starts_nothing(
    word: str, started: list[ServerConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    by_flag = serve("--model", "tiny", "--keep-best", word)
    monkeypatch.setenv("CHOCKSTONE_KEEP_BEST", word)
    by_environment = serve("--model", "tiny")
    monkeypatch.delenv("CHOCKSTONE_KEEP_BEST")
    Path("chockstone.toml").write_text(f'keep_best = "{word}"')
    by_file = serve("--model", "tiny")

    for result in (by_flag, by_environment, by_file):
        assert (result.exit_code, "whether the lowest or the highest value is the best" in result.stderr) == (2, True)
    assert started == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "chockstone: no model to serve."),
        (["--model", "Qwen/Qwen3-8B"], "chockstone: cannot serve the model 'Qwen/Qwen3-8B': there is no directory"),
        (["--model", "qwen3"], "chockstone: cannot serve the model 'qwen3': there is no directory"),
        (["--model", "tiny", "--host", "0.0.0.0"], "no keys are configured"),
        (["--model", "tiny", "--port", "70000"], "flag --port: 70000 is not a whole number"),
        (["--model", "tiny", "--config", "x.toml"], "cannot read the settings file"),
        (
            ["--model", "tiny", "--session-timeout", "1m"],
            "end after 1m without client activity, before their runs are parked",
        ),
    ],
)
def test_a_server_that_cannot_start_says_why(started: list[ServerConfig], words: list[str], message: str) -> None:
    result = serve(*words)

    assert (result.exit_code, result.stdout, started) == (2, "", [])
    assert message in result.stderr


def test_cuda_where_there_is_none_is_refused_before_anything_is_started(started: list[ServerConfig]) -> None:
    if why_no_cuda() is None:
        pytest.skip("there is CUDA here")

    result = serve("--model", "tiny", "--device", "cuda")

    assert (result.exit_code, result.stdout, started) == (2, "", [])
    assert (
        f"chockstone: flag --device: models cannot be on CUDA here: {why_no_cuda()}. Choose --device" in result.stderr
    )


def test_every_setting_has_a_flag() -> None:
    shown = serve("--help").stdout

    for name in NAMES:
        repeated = {"models": "--model", "keys": "--key", "admins": "--admin", "vllm_urls": "--vllm-url"}
        flag = repeated.get(name, f"--{name.replace('_', '-')}")
        assert re.search(rf"^  {flag} ", shown, re.MULTILINE), flag
