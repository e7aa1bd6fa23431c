from __future__ import annotations

from typing import Any

import pytest

from chockstone.backends.export.gguf.sentencepiece import adds_space, is_sentencepiece, score_tokens, spares_space
from chockstone.checkpoints.errors import ExportRefused

PREPEND = {"type": "Prepend", "prepend": "\u2581"}
REPLACE = {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}
LEGACY = {"type": "Sequence", "normalizers": [PREPEND, REPLACE]}
SPLIT = {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False}
META = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "first", "split": False}


def spaces(normalizer: Any, pre_tokenizer: Any) -> dict[str, Any]:
    return {"normalizer": normalizer, "pre_tokenizer": pre_tokenizer}


@pytest.mark.parametrize(
    ("document", "adds", "spares"),
    [
        (spaces(LEGACY, None), True, False),
        (spaces(REPLACE, None), False, False),
        (spaces(REPLACE, SPLIT), False, False),
        (spaces(None, META), True, True),
        (spaces(None, {**META, "prepend_scheme": "always"}), True, True),
        (spaces(None, {**META, "prepend_scheme": "never"}), False, False),
    ],
)
def test_spaces_are_treated_as_described(document: dict[str, Any], adds: bool, spares: bool) -> None:
    assert (adds_space(document), spares_space(document)) == (adds, spares)


@pytest.mark.parametrize(
    "document",
    [
        spaces(None, None),
        spaces(None, {**META, "split": True}),
        spaces(None, {**META, "replacement": "_"}),
        spaces({"type": "Sequence", "normalizers": [REPLACE, PREPEND]}, None),
        spaces(LEGACY, META),
        spaces({"type": "NFKC"}, META),
    ],
)
def test_other_treatments_are_refused(document: dict[str, Any]) -> None:
    with pytest.raises(ExportRefused, match="treats spaces in a way that llama.cpp does not"):
        adds_space(document)


def test_it_is_known_by_its_bytes() -> None:
    assert is_sentencepiece({"model": {"byte_fallback": True}})
    assert not is_sentencepiece({"model": {}})


def score(merges: list[Any], *plain: str) -> dict[str, float]:
    letters = {letter for token in plain for letter in token}
    return score_tokens({"model": {"merges": merges}}, {*plain, *letters})


def test_the_first_merge_has_the_highest_score() -> None:
    assert score([["b", "c"], "a b", ["ab", "c"], ["a", "bc"]], "ab", "bc", "abc") == {
        "bc": 0.0,
        "ab": -1.0,
        "abc": -2.0,
    }


def test_merges_into_one_token_that_do_not_stand_together_are_refused() -> None:
    with pytest.raises(ExportRefused, match="its merges into 'abc' do not stand together"):
        score([["a", "b"], ["ab", "c"], ["b", "c"], ["a", "bc"]], "ab", "bc", "abc")


def test_runs_of_one_character_may_stand_mixed() -> None:
    runs = [["aa", "aa"], ["aa", "a"], ["a", "aaa"], ["aaa", "a"], ["a", "aa"], ["a", "a"]]
    scores = score([["b", "c"], *runs, ["c", "b"]], "bc", "cb", "aa", "aaa", "aaaa")

    assert scores["bc"] > scores["aaaa"] == scores["aaa"] > scores["aa"] > scores["cb"]


def test_a_pair_that_only_llama_cpp_would_merge_is_refused() -> None:
    with pytest.raises(ExportRefused, match="it does not merge 'a' and 'bc', and llama.cpp would"):
        score([["a", "b"], ["b", "c"], ["ab", "c"]], "ab", "bc", "abc")
