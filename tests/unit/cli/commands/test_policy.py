from __future__ import annotations

import pytest

from support.cli.usage import check_help, check_refused


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["policy", "set", "--mine", "--keep-best", "loss:3"], "does not say whether the lowest or the highest"),
        (["policy", "set", "--keep-last", "1"], "name one scope"),
        (["policy", "set", "--global"], "name a rule"),
        (["policy", "remove", "--global", "--user", "x"], "name one scope"),
    ],
)
def test_words_that_do_not_go_together_are_refused_without_a_server(
    words: list[str], complaint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_refused(words, complaint, monkeypatch)


@pytest.mark.parametrize(
    "words",
    [
        ["policy", "show"],
        ["policy", "set"],
        ["policy", "remove"],
    ],
    ids=" ".join,
)
def test_help_teaches_by_example_and_names_the_exit_codes(words: list[str]) -> None:
    check_help(words)
