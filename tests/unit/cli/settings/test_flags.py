from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import typer
from typer.testing import CliRunner

from chockstone.cli.settings.flags import GroupedCommand, with_flags
from chockstone.cli.settings.settings import NAMES, Settings


def given_to(*words: str) -> tuple[Mapping[str, object], bool]:
    """What a command with flags gets from a command line."""
    seen: list[tuple[Mapping[str, object], bool]] = []

    def command(*, flags: Mapping[str, object], loud: Annotated[bool, typer.Option("--loud")] = False) -> None:
        seen.append((flags, loud))

    app = typer.Typer(rich_markup_mode=None)
    app.command(cls=GroupedCommand)(with_flags(command, Settings))
    result = CliRunner().invoke(app, list(words), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return seen[0]


def test_a_flag_that_is_not_given_is_none() -> None:
    flags, loud = given_to()

    assert (dict(flags), loud) == (dict.fromkeys(NAMES), False)


def test_what_is_given_goes_by_the_name_of_the_setting() -> None:
    flags, loud = given_to("--model=a", "--model=b", "--port=0", "--keep-last=off", "--journal=synced", "--loud")

    assert {name: value for name, value in flags.items() if value is not None} == {
        "models": ["a", "b"],
        "port": 0,
        "keep_last": "off",
        "journal": "synced",
    }
    assert loud
