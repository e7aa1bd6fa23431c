from __future__ import annotations

from typing import Any

import pytest

from chockstone.backends.export.gguf.byte_level import (
    NAMES,
    PreTokenizer,
    is_byte_level,
    name_pre_tokenizer,
    read_merges,
)
from chockstone.checkpoints.errors import ExportRefused

BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
USUAL = {**BYTES, "use_regex": True}
DIGITS = {"type": "Digits", "individual_digits": True}
PATTERNS = {name: each.pattern for each, name in NAMES.items()}


def document(*steps: dict[str, Any], normalizer: Any = None, **model: Any) -> dict[str, Any]:
    pre_tokenizer: Any = steps[0] if len(steps) == 1 else {"type": "Sequence", "pretokenizers": list(steps)}
    return {"normalizer": normalizer, "pre_tokenizer": pre_tokenizer, "model": {"type": "BPE", "merges": [], **model}}


def split(pattern: str, **changes: Any) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False, **changes}


@pytest.mark.parametrize(
    ("found", "name"),
    [
        (document(USUAL), "gpt-2"),
        (document(DIGITS, USUAL), "smollm"),
        (document(split(PATTERNS["llama-bpe"]), BYTES, ignore_merges=True), "llama-bpe"),
        (document(split(PATTERNS["llama-bpe"]), BYTES), "smaug-bpe"),  # the same split, with merges
        (document(split(PATTERNS["qwen2"]), BYTES, normalizer={"type": "NFC"}), "qwen2"),
        (document(split(PATTERNS["tekken"]), BYTES, ignore_merges=True), "tekken"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_cut_is_recognised_by_its_description(found: dict[str, Any], name: str) -> None:
    assert is_byte_level(found) and name_pre_tokenizer(found) == name


def test_the_patterns_are_those_of_the_families() -> None:
    llama3 = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
        r"\s+(?!\S)|\s+"
    )

    assert NAMES[PreTokenizer(llama3, ignores_merges=True)] == "llama-bpe"
    assert NAMES[PreTokenizer(llama3.replace("{1,3}", ""), ignores_merges=False)] == "qwen2"


@pytest.mark.parametrize(
    "found",
    [
        document(split(r"\p{N}{1,4}|\w+"), BYTES),
        document(split(PATTERNS["qwen2"], behavior="Removed"), BYTES),
        document(split(PATTERNS["qwen2"], invert=True), BYTES),
        document(split(PATTERNS["qwen2"]), BYTES, ignore_merges=True),
        document(split(PATTERNS["qwen2"]), USUAL),
        document(split(PATTERNS["qwen2"]), DIGITS, BYTES),
        document({"type": "Split", "pattern": {"String": "a"}}, BYTES),
        document({"type": "Whitespace"}, BYTES),
        document({"type": "Digits", "individual_digits": False}, USUAL),
        document({**USUAL, "add_prefix_space": True}),
        document(BYTES),
    ],
)
def test_another_cut_is_refused(found: dict[str, Any]) -> None:
    with pytest.raises(ExportRefused, match="has no name in llama.cpp, or none that is known here"):
        name_pre_tokenizer(found)


def test_another_normalizer_is_refused() -> None:
    with pytest.raises(ExportRefused, match="as the tokenizer's normalizer does: {'type': 'Lowercase'}"):
        name_pre_tokenizer(document(USUAL, normalizer={"type": "Lowercase"}))


def test_merges_are_written_with_a_space() -> None:
    assert read_merges(document(USUAL, merges=["a b", ["ab", "c"]])) == ["a b", "ab c"]
    for merge in ("a b c", ["a", "b", "c"], ["a b", "c"], ["a", ""], [1, 2]):
        with pytest.raises(ExportRefused, match="not of two tokens"):
            read_merges(document(USUAL, merges=[merge]))


def test_a_tokenizer_without_bytes_is_none_of_these() -> None:
    assert not is_byte_level({"pre_tokenizer": None})
    assert not is_byte_level(document(USUAL, {"type": "Whitespace"}))
