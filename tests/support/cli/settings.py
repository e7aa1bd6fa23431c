"""Settings loaded from given sources, and a model's directory for them to name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from chockstone.cli.settings.settings import Settings
from chockstone.cli.settings.sources import load_settings


def load(
    directory: Path,
    flags: dict[str, Any] | None = None,
    *,
    file: str | None = None,
    config: str | None = None,
    **environment: str,
) -> Settings:
    if file is not None:
        (directory / "chockstone.toml").write_text(file)
    return load_settings(flags or {}, config=config, environment=environment, working_directory=directory)


def make_directory(path: Path) -> Path:
    path.mkdir(parents=True)
    (path / "config.json").write_text('{"model_type": "qwen3"}')
    return path
