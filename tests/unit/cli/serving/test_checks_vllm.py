from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from chockstone.cli.serving.checks import check_settings
from chockstone.cli.settings.settings import SettingsError
from chockstone.cli.settings.sources import load_settings

URL = "http://127.0.0.1:8001"


def check(directory: Path, **flags: Any) -> None:
    model = directory / "tiny"
    model.mkdir()
    (model / "config.json").write_text('{"model_type": "qwen3"}')
    given = {"models": [f"tiny={model}"], **flags}
    check_settings(load_settings(given, environment={}, working_directory=directory))


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"sampler": "vllm"}, "name each one with --vllm-url"),
        ({"sampler": "vllm", "vllm_urls": [URL, f"{URL}/"]}, "the same server twice"),
        ({"sampler": "vllm", "vllm_urls": [f"{URL}/v1/"]}, "without /v1"),
        ({"sampler": "vllm", "vllm_urls": ["gpu-1:8000"]}, "is not the URL of a vLLM server"),
        ({"sampler": "vllm", "vllm_urls": ["http://gpu-1:80000"]}, "[Pp]ort"),
        ({"sampler": "vllm", "vllm_urls": ["http://me:secret@gpu-1"]}, "put its key into VLLM_API_KEY"),
        ({"vllm_urls": [URL]}, "--vllm-url is for samples from vLLM; add --sampler vllm"),
        ({"vllm_adapters": "adapters"}, "--vllm-adapters is for samples from vLLM; add --sampler vllm"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(tmp_path: Path, flags: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        check(tmp_path, **flags)


def test_vllm_servers_are_named_by_their_urls(tmp_path: Path) -> None:
    pytest.importorskip("aiohttp")

    check(tmp_path, sampler="vllm", vllm_urls=[URL, "https://vllm.example.com/qwen"], vllm_max_loras=4)


def test_without_aiohttp_it_is_said_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "aiohttp", None)

    with pytest.raises(SettingsError, match=r"chockstone\[vllm\]"):
        check(tmp_path, sampler="vllm", vllm_urls=[URL])
