from __future__ import annotations

import pytest

from support.cli.usage import check_refused


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["rm"], "say which"),
        (["rm", "tinker://a/weights/b", "--run", "a"], "choose among all"),
        (["rm", "tinker://a/weights/b", "x"], "is not a checkpoint"),
        (["rm", ".", "x", "--run", "a"], "belong to a server"),
        (["rm", "."], "name the checkpoints"),
        (["rm", "--older-than", "7x"], "not a duration"),
        (["rm", "--kind", "weights"], "--all takes what all your runs have"),
        (["rm", "tinker://a/weights/b", "--all"], "choose among all"),
        (["gc", "--keep-last", "3"], "`policy set` sets them, and with --dry-run this shows"),
        (["gc", "--sweep-partials"], "are for a store"),
        (["gc", "--keep-best", "loss:sideways", "--dry-run"], "does not say whether the least or the most"),
        (["gc", ".", "--run", "a"], "belongs to a server"),
    ],
)
def test_words_that_do_not_go_together_are_refused_without_a_server(
    words: list[str], complaint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_refused(words, complaint, monkeypatch)
