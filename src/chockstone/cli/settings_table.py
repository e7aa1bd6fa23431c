"""The settings as a table: name, value and source of each, fit to be pasted into a bug report."""

from __future__ import annotations

from collections.abc import Mapping

from chockstone.cli.settings import NAMES, ServedModel, Settings
from chockstone.cli.terminal import print_table
from chockstone.cli.words import printable


def print_settings(settings: Settings) -> None:
    rows = [(name, printable(_spell(settings.value_of(name))), printable(settings.source_of(name))) for name in NAMES]
    print_table(("SETTING", "VALUE", "SOURCE"), rows)


def _spell(value: object) -> str:
    if isinstance(value, Mapping):  # keys; their users are no secret
        return ", ".join(f"{user}=tml-***" for user in value) or "none"
    if isinstance(value, tuple):
        return (
            ", ".join(f"{model.name}={model.directory}" for model in value if isinstance(model, ServedModel)) or "none"
        )
    return str(value)
