from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from chockstone.cli.app import app


def run(*words: str | Path) -> Result:
    return CliRunner().invoke(app, ["resume", "explain", *map(str, words)], catch_exceptions=False)


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("",),
        ("/",),
        ("s3://bucket",),
        ("s3://key:secret@bucket/run-7",),
        ("ftp://host/run-7",),
        ("run-7", "--identity", "a", "--identity", "b"),
        ("run-7", "--identity", "=a"),
        ("run-7", "--recorded", "--identity", "a"),
        ("run-7", "--recorded", "--source", "run-6"),
    ],
)
def test_what_cannot_be_meant_is_usage(words: tuple[str, ...]) -> None:
    result = run(*words)

    assert result.exit_code == 2
    assert "Traceback" not in result.output
    assert "secret" not in result.output
