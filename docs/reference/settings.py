"""Writes settings.md from the model of the settings. `make reference` runs it; a test holds it current."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path

from chockstone.cli.settings.fields import SettingField, list_fields
from chockstone.cli.settings.settings import Settings

PAGE = Path(__file__).with_name("settings.md")
INTRODUCTION = """\
# Settings

Written by `make reference` from the model in `src/chockstone/cli/settings/settings.py`.

Each setting of `chockstone serve` is a key in `chockstone.toml`, an environment variable and a flag. A flag overrides
the variable, the variable overrides the file, and the file overrides the default. `chockstone serve --show-config`
prints the value and the source of each. `--config FILE` or `CHOCKSTONE_CONFIG` names another file.

- SIZE is a number of bytes, or a number with a unit: `500MB`, `50GiB`. TIME is a number with a unit: `90s`, `15m`,
  `12h`, `7d`, `2w`.
- `off` or `none` switches a setting off whose default is `off`.
- Settings with a repeatable flag are lists: a TOML list, or text with commas between. `models` and `keys` may also be
  tables.
- Relative paths in a file start from the directory of the file.
"""


def render(model: type = Settings) -> str:
    sections = [
        f"## {panel}\n\n| key | variable | flag | default | meaning |\n|---|---|---|---|---|\n"
        + "".join(map(row, fields))
        for panel, fields in groupby(list_fields(model), lambda field: field.panel)
    ]
    return "\n".join((INTRODUCTION, *sections))


def row(field: SettingField) -> str:
    metavar = field.metavar.replace("|", "\\|")
    default = f"`{field.default_text}`" if field.default_text else "none"
    flag = field.both_flags if field.kind.is_switch else f"{field.flag} {metavar}"
    return f"| `{field.name}` | `{field.variable}` | `{flag}` | {default} | {field.help} |\n"


if __name__ == "__main__":
    PAGE.write_text(render())
