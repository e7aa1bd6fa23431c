from __future__ import annotations

import pytest

from support.cli.usage import check_help, check_refused


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["ttl", "tinker://a/weights/b", "soon"], "not a duration"),
    ],
)
def test_words_that_do_not_go_together_are_refused_without_a_server(
    words: list[str], complaint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_refused(["checkpoints", *words], complaint, monkeypatch)


@pytest.mark.parametrize(
    "words",
    [
        ["checkpoints", "publish"],
        ["checkpoints", "unpublish"],
        ["checkpoints", "ttl"],
        ["checkpoints", "copy"],
    ],
    ids=" ".join,
)
def test_help_teaches_by_example_and_names_the_exit_codes(words: list[str]) -> None:
    check_help(words)
