"""Consent: the question before something is removed."""

from __future__ import annotations

import sys
from collections.abc import Iterable

import typer

from chockstone.cli.output.terminal import complain


def is_confirmed(lines: Iterable[str], question: str) -> bool:
    """Show what is about to go and ask. A usage error where nobody is there to answer."""
    if not sys.stdin.isatty():
        raise typer.BadParameter("nobody is there to confirm; pass --yes to remove, or --dry-run to see what would go")
    for line in lines:
        complain(line)
    return typer.confirm(question, err=True)
