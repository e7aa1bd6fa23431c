from __future__ import annotations

from pathlib import Path

import pytest

from support.cli.store_commands import run
from support.cli.usage import check_help


def test_help_teaches_by_example_and_names_the_exit_codes() -> None:
    check_help(["checkpoints", "import"])


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--all", "--name", "a"], "--name"),
        (["--all", "--step", "0"], "--step"),
        (["--from", "keras"], "--from"),
        (["--step", "-1"], "--step"),
    ],
)
def test_options_that_do_not_go_together_are_refused(tmp_path: Path, words: list[str], complaint: str) -> None:
    result = run("import", tmp_path, tmp_path / "store", *words)

    assert result.exit_code == 2
    assert complaint in result.stderr
