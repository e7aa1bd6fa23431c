from __future__ import annotations

from pathlib import Path

import pytest

from chockstone.cli.settings.settings import NAMES
from chockstone.cli.settings.table import print_settings
from support.cli.settings import load


def test_the_table_shows_sources_and_hides_keys(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = load(tmp_path, {"models": ["a=x"]}, file="[keys]\nalice = 'tml-geheim1'\n", CHOCKSTONE_PORT="9")

    print_settings(settings)

    lines = [line.split(maxsplit=2) for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == ["SETTING", "VALUE", "SOURCE"]
    assert [line[0] for line in lines[1:]] == list(NAMES)
    assert ["models", f"a={tmp_path}/x", "flag --model"] in lines
    assert ["port", "9", "environment CHOCKSTONE_PORT"] in lines
    assert ["keys", "alice=tml-***", f"file {tmp_path}/chockstone.toml"] in lines
    assert "geheim" not in repr(settings)


def test_the_table_shows_rules_as_they_can_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = {"user_quota": "50GiB", "keep_best": "loss", "trash": "1.5d", "scrub_rate": "512MB", "admins": ["b", "a"]}
    settings = load(tmp_path, flags)

    print_settings(settings)

    shown = dict(line.split("  ", maxsplit=1) for line in capsys.readouterr().out.splitlines()[1:])
    values = {name: text.strip().split("  ")[0] for name, text in shown.items()}
    assert [values[name] for name in flags] == ["50GiB", "loss:min:1", "36h", "512MB", "a, b"]
    assert [values[name] for name in ("keep_last", "run_quota", "disk_reserve", "scrub_interval")] == [
        "off",
        "off",
        "1GiB",
        "7d",
    ]
    unwritten = dict.fromkeys(("models", "keys", "vllm_urls"))
    assert load(tmp_path, values | unwritten) == settings
