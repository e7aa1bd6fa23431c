"""The settings as a table: name, value and source of each, fit to be pasted into a bug report."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from chockstone.cli.output.formatting import printable, write_best, write_duration, write_size
from chockstone.cli.output.terminal import print_table
from chockstone.cli.settings.settings import NAMES, ModelSetting, Settings
from chockstone.wire.redaction import redact_url


def print_settings(settings: Settings, chosen: Sequence[tuple[str, str, str]] = ()) -> None:
    """``chosen``: what is no setting but is decided for this machine; name, value and reason of each."""
    rows = [
        (name, printable(_spell(name, settings.value_of(name))), printable(settings.source_of(name))) for name in NAMES
    ]
    print_table(("SETTING", "VALUE", "SOURCE"), [*rows, *(tuple(map(printable, row)) for row in chosen)])


def _models(models: tuple[ModelSetting, ...]) -> str:
    return ", ".join(f"{model.name}={model.directory}" for model in models) or "none"


def _keys(keys: Mapping[str, str]) -> str:
    return ", ".join(f"{user}=tml-***" for user in keys) or "none"  # users are no secret


_SPELLED: Final[Mapping[str, Callable[[Any], str]]] = {  # Any: of each setting's own type
    "models": _models,
    "keys": _keys,
    "admins": lambda admins: ", ".join(sorted(admins)) or "none",
    "keep_best": lambda best: write_best(*best),
    "database": redact_url,
    "vllm_urls": lambda urls: ", ".join(urls) or "none",
    **dict.fromkeys(("user_quota", "run_quota", "disk_reserve", "scrub_rate"), write_size),
    **dict.fromkeys(("checkpoint_ttl", "trash", "sweep_interval", "scrub_every"), write_duration),
    **dict.fromkeys(("recovery_replay", "park_after", "forget_after"), write_duration),
}


def _spell(name: str, value: object) -> str:
    if value is None or (name in ("trash", "scrub_rate") and not value):
        return "off"
    return _SPELLED.get(name, str)(value)
