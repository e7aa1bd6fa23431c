"""Asks for confirmation before something is deleted."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Final

import typer

from chockstone.cli.output.terminal import print_stderr

NOT_CONFIRMED: Final = (
    "standard input is no terminal, so nobody can confirm; pass --yes to delete, or --dry-run to see what would be "
    "deleted"
)


def is_confirmed(lines: Iterable[str], question: str) -> bool:
    """Show what would be deleted and ask. A usage error if standard input is no terminal."""
    if not sys.stdin.isatty():
        raise typer.BadParameter(NOT_CONFIRMED)
    for line in lines:
        print_stderr(line)
    return typer.confirm(question, err=True)
