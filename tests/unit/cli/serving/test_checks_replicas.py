from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from chockstone.cli.serving.checks import check_settings
from chockstone.cli.settings.settings import SettingsError
from chockstone.cli.settings.sources import load_settings


def check(directory: Path, **flags: Any) -> None:
    model = directory / "tiny"
    model.mkdir()
    (model / "config.json").write_text('{"model_type": "qwen3"}')
    check_settings(load_settings({"models": [f"tiny={model}"], **flags}, environment={}, working_directory=directory))


@pytest.mark.parametrize("replicas", [1, 2, "auto"])
def test_a_local_server_may_have_replicas(tmp_path: Path, replicas: object) -> None:
    check(tmp_path, replicas=replicas)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"backend": "ray"}, "needs a cluster that all worker groups join"),
        ({"backend": "ray", "ray_address": "auto", "replicas": "auto"}, "counts the GPUs of this machine"),
        ({"sampler": "vllm", "vllm_urls": ["http://127.0.0.1:8001"]}, "--replicas does not work with vLLM servers yet"),
    ],
)
def test_replicas_that_cannot_be_are_refused(tmp_path: Path, flags: dict[str, Any], message: str) -> None:
    pytest.importorskip("ray" if "backend" in flags else "aiohttp")

    with pytest.raises(SettingsError, match=message):
        check(tmp_path, **{"replicas": 2, **flags})


def test_a_ray_cluster_may_have_replicas(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    check(tmp_path, backend="ray", ray_address="auto", replicas=2, workers=4)
