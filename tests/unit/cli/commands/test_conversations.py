from __future__ import annotations

import pytest

from support.cli.usage import check_help

COMMANDS = [["conversations", each] for each in ("ls", "show", "export", "reward", "correct", "rm")]


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_help_teaches_by_example_and_names_the_exit_codes(words: list[str]) -> None:
    check_help(words)
