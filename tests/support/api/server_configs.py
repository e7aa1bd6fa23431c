"""A server's configuration with the defaults that ``chockstone serve`` has."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from chockstone.api.config import ServerConfig
from chockstone.cli.serving.server_config import server_config
from chockstone.cli.settings.settings import Settings


def default_config(data: Path, **changes: Any) -> ServerConfig:
    return replace(server_config(Settings()), data=data, **changes)
