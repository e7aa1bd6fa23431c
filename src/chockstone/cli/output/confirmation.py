"""Asks for confirmation before something is deleted."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Final

import typer

from chockstone.cli.output.terminal import print_stderr

NOT_CONFIRMED: Final = (
    "cannot ask for confirmation: standard input is not a terminal; pass --yes to delete, or --dry-run to list the "
    "deletions"
)


def is_confirmed(lines: Iterable[str], question: str) -> bool:
    """Show what would be deleted and ask. A usage error if standard input is not a terminal."""
    if not sys.stdin.isatty():
        raise typer.BadParameter(NOT_CONFIRMED)
    for line in lines:
        print_stderr(line)
    return typer.confirm(question, err=True)
