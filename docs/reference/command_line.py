"""Writes command-line.md from the command line's own help. `make reference` runs it; a test holds it current."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer
from typer.testing import CliRunner

from chockstone.cli.app import app
from chockstone.cli.output.exit_codes import MEANINGS

PAGE = Path(__file__).with_name("command-line.md")
INTRODUCTION = """\
# The command line

Written by `make reference` from the `--help` of each command.

`chockstone --install-completion` installs completion of commands and options for your shell (bash, zsh, fish or
PowerShell); `chockstone --show-completion` prints the script.

An id of a run may be shortened to a unique prefix in every command, and the name of a checkpoint in commands that only
read. A prefix that several ids begin with is a usage error, which lists them.

## Exit codes

All commands end with these codes.

| code | meaning |
|---|---|
"""


def render() -> str:
    codes = "".join(f"| {code:d} | {meaning} |\n" for code, meaning in MEANINGS.items())
    sections = (f"## `{f'chockstone {command}'.rstrip()}`\n\n```text\n{ask(command)}\n```\n" for command in commands())
    return "\n".join((INTRODUCTION + codes, *sections))


def commands() -> Iterator[str]:
    """All commands in the order of the help, each group before its own commands."""
    program: Any = typer.main.get_command(app)  # Any: classes of typer's own click
    yield ""
    for name, command in program.commands.items():
        yield name
        yield from (f"{name} {each}" for each in getattr(command, "commands", {}))


def ask(command: str) -> str:
    environment = {"COLUMNS": "80", "TERM": "dumb", "NO_COLOR": "1"}
    done = CliRunner().invoke(app, [*command.split(), "--help"], prog_name="chockstone", env=environment)
    assert done.exit_code == 0, done.output
    return done.output.rstrip()


if __name__ == "__main__":
    PAGE.write_text(render())
