"""All commands of the program, found in the program itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer
from typer.core import TyperGroup
from typer.testing import CliRunner

from chockstone.cli.app import app

PROGRAM_GROUP: Any = typer.main.get_command(app)  # Any: classes of typer's own click


def _walk(group: Any, words: str) -> Iterator[tuple[str, Any]]:
    for name, command in group.commands.items():
        path = f"{words} {name}".strip()
        yield path, command
        if isinstance(command, TyperGroup):
            yield from _walk(command, path)


EVERY = dict(_walk(PROGRAM_GROUP, ""))
COMMANDS = list(EVERY)  # groups, too
LEAVES = [path for path, command in EVERY.items() if not isinstance(command, TyperGroup)]


def ask_for_help(command: str) -> str:
    """The help on a terminal of 80 columns."""
    environment = {"COLUMNS": "80", "TERM": "dumb", "NO_COLOR": "1"}
    done = CliRunner().invoke(app, [*command.split(), "--help"], prog_name="chockstone", env=environment)
    assert done.exit_code == 0, done.output
    return done.output
