"""Checks of a command's usage errors and of its help, without a server."""

from __future__ import annotations

import re

import pytest
from typer.testing import CliRunner

from chockstone.cli.app import app


def check_refused(words: list[str], complaint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`chockstone` with these words is a usage error, and no server is asked."""
    monkeypatch.setenv("TINKER_BASE_URL", "http://127.0.0.1:9")

    result = CliRunner().invoke(app, words, catch_exceptions=False)

    assert result.exit_code == 2
    assert complaint in " ".join(result.stderr.split())


def check_help(words: list[str]) -> None:
    """The help of a command has an example and names the exit codes."""
    result = CliRunner().invoke(app, [*words, "--help"], catch_exceptions=False)

    assert result.exit_code == 0
    assert re.search(rf"^    chockstone {' '.join(words)}\b", result.stdout, re.MULTILINE)
    assert "Exit codes: 0 success" in result.stdout
    assert "--json" in result.stdout
