from __future__ import annotations

import pytest

from support.cli.usage import check_refused


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["rm"], "name the checkpoints"),
        (["rm", "tinker://a/weights/b", "--run", "a"], "select checkpoints"),
        (["rm", "tinker://a/weights/b", "x"], "is not a checkpoint"),
        (["rm", ".", "x", "--run", "a"], "are for a server"),
        (["rm", "."], "name the checkpoints"),
        (["rm", "--older-than", "7x"], "not a duration"),
        (["rm", "--kind", "weights"], "--all selects all your runs"),
        (["rm", "tinker://a/weights/b", "--all"], "select checkpoints"),
        (["gc", "--keep-last", "3"], "`chockstone policy set` sets them. With --dry-run, this command lists"),
        (["gc", "--sweep-partials"], "are for a store"),
        (["gc", "--keep-best", "loss:sideways", "--dry-run"], "does not say whether the lowest or the highest"),
        (["gc", ".", "--run", "a"], "is for a server"),
    ],
)
def test_words_that_do_not_go_together_are_refused_without_a_server(
    words: list[str], complaint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_refused(["checkpoints", *words], complaint, monkeypatch)
