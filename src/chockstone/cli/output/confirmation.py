"""Asks for confirmation before something is deleted."""

from __future__ import annotations

import sys
from collections.abc import Iterable

import typer

from chockstone.cli.output.terminal import complain


def is_confirmed(lines: Iterable[str], question: str) -> bool:
    """Show what would be deleted and ask. A usage error if standard input is no terminal."""
    if not sys.stdin.isatty():
        raise typer.BadParameter("nobody is there to confirm; pass --yes to remove, or --dry-run to see what would go")
    for line in lines:
        complain(line)
    return typer.confirm(question, err=True)
