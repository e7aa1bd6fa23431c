from __future__ import annotations

from pathlib import Path

import pytest

from chockstone.cli.serving.banner import base_url, print_banner
from chockstone.cli.settings.settings import Settings
from chockstone.cli.settings.values import ModelSetting


def test_with_keys_the_banner_shows_none_of_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = ModelSetting("tiny", tmp_path)
    settings = Settings(models=(model,), host="0.0.0.0", keys={"alice": "tml-geheim1", "bob": "tml-geheim2"})

    print_banner(settings, 9, users=["alice", "bob", "carol"])

    out = capsys.readouterr().out
    assert "users: alice, bob, carol\n" in out
    assert "export TINKER_BASE_URL=http://127.0.0.1:9\nexport TINKER_API_KEY=tml-..." in out
    assert "geheim" not in out


@pytest.mark.parametrize("console", [True, False])
def test_the_banner_says_where_the_console_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], console: bool
) -> None:
    print_banner(Settings(models=(ModelSetting("tiny", tmp_path),), console=console), 9, users=[])

    assert ("console: http://127.0.0.1:9/console\n" in capsys.readouterr().out) is console


def test_the_banner_names_the_trackers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = Settings(models=(ModelSetting("tiny", tmp_path),), track=("mlflow", "wandb"))

    print_banner(settings, 9, users=[])

    assert "trackers: mlflow, wandb\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", "http://127.0.0.1:80"),
        ("localhost", "http://localhost:80"),
        ("0.0.0.0", "http://127.0.0.1:80"),
        ("::", "http://[::1]:80"),
        ("fe80::1", "http://[fe80::1]:80"),
    ],
)
def test_a_url_leads_to_the_host(host: str, expected: str) -> None:
    assert base_url(host, 80) == expected
