from __future__ import annotations

from pathlib import Path

from chockstone.cli.settings.settings import NAMES, LimitSettings
from support.cli.settings import load


def test_defaults_are_safe_for_a_newcomer(tmp_path: Path) -> None:
    settings = load(tmp_path)

    assert (settings.host, settings.port, settings.data) == ("127.0.0.1", 8000, tmp_path / "chockstone-data")
    assert (settings.models, settings.keys, settings.device, settings.dtype) == ((), {}, "auto", "auto")
    assert settings.limits == LimitSettings()
    assert {settings.source_of(name) for name in NAMES} == {"default"}
