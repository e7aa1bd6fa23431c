"""`chockstone serve`, run in this process."""

from __future__ import annotations

from typer.testing import CliRunner, Result

from chockstone.cli.app import app


def serve(*words: str) -> Result:
    return CliRunner().invoke(app, ["serve", *words], catch_exceptions=False)
