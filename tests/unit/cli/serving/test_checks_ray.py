"""Settings of workers on Ray that cannot work are refused before anything starts."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from chockstone.cli.serving.checks import check_settings
from chockstone.cli.settings.settings import DeploymentSettings, Settings, SettingsError
from chockstone.cli.settings.values import ModelSetting


@pytest.fixture(autouse=True)
def _ray_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", ModuleType("ray"))


def check(directory: Path, **deployment: Any) -> None:
    (directory / "config.json").write_text('{"model_type": "qwen3"}')
    model = ModelSetting(name="tiny", directory=directory)
    check_settings(
        replace(Settings(), models=(model,), data=directory / "data", deployment=DeploymentSettings(**deployment))
    )


@pytest.mark.parametrize("deployment", [{"workers": 2}, {"min_workers": 1}, {"ray_address": "auto"}])
def test_what_is_for_ray_wants_ray(tmp_path: Path, deployment: dict[str, Any]) -> None:
    with pytest.raises(SettingsError, match="add --backend ray"):
        check(tmp_path, **deployment)
    check(tmp_path, backend="ray", **deployment)


def test_more_workers_cannot_be_left_than_there_are(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="lower --min-workers"):
        check(tmp_path, backend="ray", workers=2, min_workers=3)


@pytest.mark.parametrize("address", ["ray://head:10001", "head", "http://head:8265", ""])
def test_a_cluster_is_joined_as_a_node(tmp_path: Path, address: str) -> None:
    with pytest.raises(SettingsError, match=r"HOST:PORT of its head"):
        check(tmp_path, backend="ray", ray_address=address)


@pytest.mark.parametrize("address", ["auto", "head:6379", "10.0.0.1:6379", "[fd00::1]:6379"])
def test_addresses_of_heads_are_taken(tmp_path: Path, address: str) -> None:
    check(tmp_path, backend="ray", ray_address=address)


def test_where_ray_is_absent_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)

    with pytest.raises(SettingsError, match=r"pip install 'chockstone\[ray\]'"):
        check(tmp_path, backend="ray")
