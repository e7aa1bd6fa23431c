"""Effective settings: what the server was started with, without secrets, as plain JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields, is_dataclass
from pathlib import Path
from typing import Any, Final

from chockstone.api.config import ServerConfig
from chockstone.wire.redaction import redact, redact_url

_LEFT_OUT: Final = "keys"


def effective_settings(config: ServerConfig) -> dict[str, Any]:  # Any: plain JSON
    """Of API keys only the users are there. Passwords in URLs are replaced."""
    values = {each.name: _plain(getattr(config, each.name)) for each in fields(config) if each.name != _LEFT_OUT}
    shown: dict[str, Any] = redact(values)
    return {
        **shown,
        "key_users": sorted(config.keys),
        "database": redact_url(config.database_url),
        "store": redact_url(config.store_url),
    }


def _plain(value: object) -> Any:  # Any: plain JSON
    match value:
        case Path():
            return str(value)
        case str():
            return redact_url(value)
        case Mapping():
            return {str(key): _plain(inner) for key, inner in value.items()}
        case frozenset() | set():
            return sorted(map(str, value))
        case list() | tuple():
            return [_plain(inner) for inner in value]
        case _ if is_dataclass(value) and not isinstance(value, type):
            return {key: _plain(inner) for key, inner in asdict(value).items()}
        case None | bool() | int() | float():
            return value
        case _:
            return str(value)
