from __future__ import annotations

import pytest

from support.cli.usage import check_help, check_refused


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["export", "tinker://a/weights/b", "c", "--merge"], "need each other"),
        (["export", "tinker://a/weights/b", "c", "d"], "is one argument too many"),
        (["export", "tinker://a/weights/b", "c.gguf", "--to", "gguf"], "needs --base DIRECTORY"),
        (["export", "tinker://a/weights/b", "c", "--to", "gguf", "--base", "d"], "must end in .gguf"),
        (["export", "tinker://a/weights/b", "c.gguf", "--to", "gguf", "--base", "d", "--member", "e"], "as a whole"),
        (["export", "tinker://a/weights/b", "c", "--to", "torch", "--type", "f16"], "is for --to gguf"),
        (["export", "tinker://a/weights/b", "c", "--no-tokenizer"], "is for --to gguf"),
        (["export", "tinker://a/weights/b", "c", "--to", "dcp", "--member", "e"], "cannot be combined with --to dcp"),
    ],
)
def test_words_that_do_not_go_together_are_refused_without_a_server(
    words: list[str], complaint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_refused(["checkpoints", *words], complaint, monkeypatch)


@pytest.mark.parametrize(
    "words",
    [
        ["checkpoints", "download"],
    ],
    ids=" ".join,
)
def test_help_teaches_by_example_and_names_the_exit_codes(words: list[str]) -> None:
    check_help(words)
