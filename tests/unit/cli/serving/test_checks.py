from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from chockstone.cli.local.api_keys import create_key, list_keys, revoke_key
from chockstone.cli.serving.checks import check_settings, is_loopback
from chockstone.cli.settings.settings import SettingsError
from chockstone.cli.settings.table import print_settings
from support.cli.settings import load, make_directory

pytest.importorskip("sqlalchemy", reason="the catalog needs the extra server")


def test_without_a_model_there_is_nothing_to_serve(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="chockstone model make ./tiny && chockstone serve --model tiny=./tiny"):
        check_settings(load(tmp_path))


def test_a_model_must_be_a_directory_with_a_config(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    make_directory(tmp_path / "broken").joinpath("config.json").write_text("{")
    make_directory(tmp_path / "typeless").joinpath("config.json").write_text("{}")
    make_directory(tmp_path / "good")

    check_settings(load(tmp_path, {"models": ["good"]}))
    for word, message in {
        "missing": f"cannot serve the model 'missing': there is no directory '{tmp_path}/missing'",
        "empty": "holds no config.json",
        "broken": "is not JSON",
        "typeless": "names no model_type",
    }.items():
        with pytest.raises(SettingsError, match=message):
            check_settings(load(tmp_path, {"models": ["good", word]}))


def test_a_tracker_that_is_not_installed_is_named_with_its_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    flags = {"models": [str(make_directory(tmp_path / "good"))], "track": ["tensorboard", "wandb"]}

    with pytest.raises(
        SettingsError, match=r"--track wandb needs .*chockstone\[wandb\]'; or leave wandb out of --track"
    ):
        check_settings(load(tmp_path, flags))


def test_other_machines_are_let_in_only_with_keys(tmp_path: Path) -> None:
    flags = {"models": [str(make_directory(tmp_path / "good"))], "host": "0.0.0.0"}

    with pytest.raises(SettingsError, match=r"the host '0.0.0.0' .* --key USER=tml-…, CHOCKSTONE_KEYS or a \[keys\]"):
        check_settings(load(tmp_path, flags))
    check_settings(load(tmp_path, flags | {"keys": ["alice=tml-alice"]}))


def test_keys_of_the_catalog_let_other_machines_in_until_the_last_is_revoked(tmp_path: Path) -> None:
    flags = {"models": [str(make_directory(tmp_path / "good"))], "host": "0.0.0.0", "data": "data"}
    now = datetime.now(UTC)

    with pytest.raises(SettingsError, match="chockstone keys create USER"):
        check_settings(load(tmp_path, flags))
    create_key(load(tmp_path, flags), "alice", note="", now=now)
    check_settings(load(tmp_path, flags))
    [row] = list_keys(load(tmp_path, flags))
    revoke_key(load(tmp_path, flags), str(row.key_id), now=now)

    with pytest.raises(SettingsError, match="no keys are configured"):
        check_settings(load(tmp_path, flags))


def test_data_must_not_be_a_file(tmp_path: Path) -> None:
    (tmp_path / "data").touch()

    with pytest.raises(SettingsError, match="is a file; choose another with --data"):
        check_settings(load(tmp_path, {"models": [str(make_directory(tmp_path / "good"))], "data": "data"}))


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        *((host, True) for host in ("127.0.0.1", "127.8.8.8", "::1", "localhost")),
        *((host, False) for host in ("0.0.0.0", "::", "10.0.0.1", "localhost.example.com", "gpu-box")),
    ],
)
def test_only_loopback_is_loopback(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected


def test_a_database_needs_its_driver_and_its_password_is_not_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = {"models": [str(make_directory(tmp_path / "good"))], "database": "postgresql://ann:se@cret@db/x"}
    monkeypatch.setitem(sys.modules, "asyncpg", None)

    with pytest.raises(SettingsError, match=r"pip install 'chockstone\[postgres\]'"):
        check_settings(load(tmp_path, flags))
    print_settings(load(tmp_path, flags))

    shown = capsys.readouterr().out
    assert "postgresql://ann:***@db/x" in shown
    assert "cret" not in shown
    assert "cret" not in repr(load(tmp_path, flags))
