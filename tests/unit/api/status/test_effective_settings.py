from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import orjson

from chockstone.api.status.effective_settings import effective_settings
from chockstone.cli.settings.settings import Settings
from support.api.server_configs import default_config


def test_settings_are_shown_without_secrets(tmp_path: Path) -> None:
    config = default_config(
        tmp_path,
        keys={"ann": "tml-secret-of-ann"},
        admins=frozenset({"root", "ann"}),
        database="postgresql://chockstone:s3cret@db/chockstone",
        store="s3://id:pa55@bucket/prefix",
        vllm_urls=("http://user:pa55@host:8000",),
        models={"tiny": tmp_path / "model"},
    )

    shown = effective_settings(config)
    text = orjson.dumps(shown).decode()

    for secret in ("tml-", "s3cret", "pa55"):
        assert secret not in text
    assert shown["key_users"] == ["ann"]
    assert shown["admins"] == ["ann", "root"]
    assert shown["models"] == {"tiny": str(tmp_path / "model")}
    assert shown["durability"]["journal"] == "on"
    assert shown["console"] is True
    assert shown["storage"]["reserve_bytes"] == config.storage.reserve_bytes
    assert shown["database"] == "postgresql://chockstone:***@db/chockstone"


def test_defaults_that_are_derived_are_shown_as_they_take_effect(tmp_path: Path) -> None:
    shown = effective_settings(default_config(tmp_path))

    assert shown["database"] == f"sqlite:///{tmp_path}/catalog.sqlite3"
    assert shown["store"] == str(tmp_path / "checkpoints")


def test_every_setting_of_a_server_is_shown(tmp_path: Path) -> None:
    shown = effective_settings(default_config(tmp_path))

    groups = {"limits", "recovery", "storage", "traces", "deployment"}  # whose parts have other names
    missing = {each.name for each in fields(Settings)} - groups - set(shown) - {"keys", "sources"}
    assert not missing
