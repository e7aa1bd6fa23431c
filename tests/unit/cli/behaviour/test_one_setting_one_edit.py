"""A setting is added by one line in the model: everything else that shows or reads it follows."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import ClassVar

import pytest
import typer
from typer.testing import CliRunner, Result

from chockstone.cli.settings.fields import setting
from chockstone.cli.settings.flags import GroupedCommand, with_flags
from chockstone.cli.settings.settings import LimitSettings, Settings, SettingsError
from chockstone.cli.settings.sources import load_model
from chockstone.cli.settings.table import print_settings
from chockstone.cli.settings.values import duration, whole_number

REFERENCE = Path(__file__).parents[4] / "docs" / "reference"


@dataclass(frozen=True, slots=True)
class MoreLimits(LimitSettings):
    TITLE: ClassVar = "Limits"

    max_dogs: int = setting(whole_number(1, 99), 7, "Maximum number of dogs in the office.")


@dataclass(frozen=True, slots=True)
class MoreSettings(Settings):
    walk_interval: float = setting(duration(), 3600.0, "Interval between two walks.")
    limits: MoreLimits = MoreLimits()


def load(
    directory: Path, flags: Mapping[str, object] | None = None, *, file: str = "", **environment: str
) -> MoreSettings:
    (directory / "chockstone.toml").write_text(file)
    return load_model(MoreSettings, flags or {}, config=None, environment=environment, working_directory=directory)


def run(directory: Path, *words: str) -> Result:
    """A command with the flags of the model, which prints what --show-config does."""

    def show(*, flags: Mapping[str, object]) -> None:
        """Show the settings."""
        print_settings(load(directory, flags))

    app = typer.Typer(rich_markup_mode=None)
    app.command(cls=GroupedCommand)(with_flags(show, MoreSettings))
    return CliRunner().invoke(app, list(words), env={"COLUMNS": "100", "TERM": "dumb"}, catch_exceptions=False)


def reference() -> ModuleType:
    spec = importlib.util.spec_from_file_location("settings_reference", REFERENCE / "settings.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    return script


def test_the_help_has_its_flag_under_the_heading_of_its_group(tmp_path: Path) -> None:
    shown = run(tmp_path, "--help").stdout

    limits = shown[shown.index("\nLimits:\n") : shown.index("\nCheckpoint storage:\n")]
    assert re.search(
        r"^  --max-dogs N +Maximum number of dogs in the office\.\s+\[default:\s+7\]", limits, re.MULTILINE
    )
    server = shown[shown.index("\nServer:\n") : shown.index("\nLimits:\n")]
    assert re.search(r"^  --walk-interval TIME +Interval between two walks\.\s+\[default:\s+1h\]", server, re.MULTILINE)


def test_each_source_sets_it_and_the_stronger_one_wins(tmp_path: Path) -> None:
    file = "max_dogs = 2\nwalk_interval = '2h'\n"

    by_file = load(tmp_path, file=file)
    by_variable = load(tmp_path, file=file, CHOCKSTONE_MAX_DOGS="3", CHOCKSTONE_WALK_INTERVAL="3h")
    by_flag = load(tmp_path, {"max_dogs": 4}, file=file, CHOCKSTONE_MAX_DOGS="3")

    assert (load(tmp_path).limits.max_dogs, by_file.limits.max_dogs, by_file.walk_interval) == (7, 2, 7200.0)
    assert (by_variable.limits.max_dogs, by_variable.walk_interval, by_flag.limits.max_dogs) == (3, 10800.0, 4)
    assert by_flag.limits.max_runs == LimitSettings().max_runs


def test_the_table_shows_its_value_and_its_source(tmp_path: Path) -> None:
    shown = run(tmp_path, "--max-dogs", "5").stdout

    assert re.search(r"^max_dogs +5 +flag --max-dogs$", shown, re.MULTILINE)
    assert re.search(r"^walk_interval +1h +default$", shown, re.MULTILINE)


@pytest.mark.parametrize(
    ("file", "environment", "message"),
    [
        ("max_dogs = 100", {}, "file .*/chockstone.toml: 100 is not a whole number from 1 to 99"),
        ("", {"CHOCKSTONE_MAX_DOGS": "0"}, "environment CHOCKSTONE_MAX_DOGS: '0' is not a whole number from 1 to 99"),
        ("max_dog = 1", {}, "the key 'max_dog' in .* is not a setting; did you mean 'max_dogs'?"),
        ("", {"CHOCKSTONE_MAX_DOG": "1"}, "did you mean 'CHOCKSTONE_MAX_DOGS'?"),
    ],
)
def test_a_mistake_in_it_is_named(tmp_path: Path, file: str, environment: dict[str, str], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        load(tmp_path, file=file, **environment)


def test_the_reference_has_a_row_for_it() -> None:
    page = reference().render(MoreSettings)

    row = "| `max_dogs` | `CHOCKSTONE_MAX_DOGS` | `--max-dogs N` | `7` | Maximum number of dogs in the office. |"
    assert row in page[page.index("## Limits") : page.index("## Checkpoint storage")]
