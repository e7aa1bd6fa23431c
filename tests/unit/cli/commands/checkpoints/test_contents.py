from __future__ import annotations

import pytest

from support.cli.usage import check_refused


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["ls", "--prefix", "x"], "--prefix is for a store"),
        (["ls", ".", "--run", "x"], "is for a server"),
        (["ls", "tinker://a", "--run", "b"], "given twice"),
        (["show", "tinker://a/b"], "is not a checkpoint"),
        (["show", "tinker://a/weights/c", "d"], "names one checkpoint"),
        (["diff", "tinker://a/weights/b", "tinker://a/weights/c", "d"], "is one argument too many"),
        (
            ["verify", "./a.tar", "tinker://a/weights/c"],
            "is a path on a server, and this argument is a store or a file",
        ),
        (["show", "nowhere"], "there is no archive file 'nowhere'"),
    ],
)
def test_words_that_do_not_go_together_are_refused_without_a_server(
    words: list[str], complaint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_refused(["checkpoints", *words], complaint, monkeypatch)
