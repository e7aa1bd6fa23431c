"""Byte-level tokenizers: their merges, and the name of their pre-tokenizer, which splits text into words, in llama.cpp.

llama.cpp has the pre-tokenizers in its code, by name. A tokenizer is recognised by the exact description in its
``tokenizer.json``; any other is refused, as another split would give other tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from chockstone.checkpoints.errors import ExportRefused

Json = Any  # plain JSON
GPT2: Final = "gpt2"  # how GGUF calls tokenizers of this kind
TEKKEN: Final = "tekken"  # llama.cpp splits nearly as described
_WORDS: Final = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
_REST: Final = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_BY_CASE: Final = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|"
    r"\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_USUAL: Final = "usual"  # the split that ByteLevel makes by itself
_DIGITS: Final = "digits"  # the same, after each digit is split off


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """How text is split into words, and whether a word that is a token stays whole, whatever the merges say."""

    pattern: str
    ignores_merges: bool


NAMES: Final[Mapping[PreTokenizer, str]] = {  # as llama.cpp calls them
    PreTokenizer(_USUAL, ignores_merges=False): "gpt-2",
    PreTokenizer(_DIGITS, ignores_merges=False): "smollm",
    PreTokenizer(rf"{_WORDS}\p{{N}}{{1,3}}{_REST}", ignores_merges=True): "llama-bpe",
    PreTokenizer(rf"{_WORDS}\p{{N}}{{1,3}}{_REST}", ignores_merges=False): "smaug-bpe",
    PreTokenizer(rf"{_WORDS}\p{{N}}{_REST}", ignores_merges=False): "qwen2",
    PreTokenizer(_BY_CASE, ignores_merges=True): TEKKEN,
}


def is_byte_level(document: Mapping[str, Json]) -> bool:
    steps = _steps(document.get("pre_tokenizer"))
    return bool(steps) and isinstance(steps[-1], dict) and steps[-1].get("type") == "ByteLevel"


def name_pre_tokenizer(document: Mapping[str, Json]) -> str:
    """The name of the pre-tokenizer of a ``tokenizer.json``. Raises ExportRefused."""
    normalizer = document.get("normalizer")
    if normalizer is not None and normalizer != {"type": "NFC"}:
        raise ExportRefused(f"llama.cpp cannot change text as the tokenizer's normalizer does: {str(normalizer)[:200]}")
    pattern = _find_pattern(_steps(document.get("pre_tokenizer")))
    ignores_merges = bool(document["model"].get("ignore_merges", False))
    found = None if pattern is None else PreTokenizer(pattern, ignores_merges)
    if found is None or found not in NAMES:
        raise ExportRefused(
            "the tokenizer splits text into words in a way that has no name in llama.cpp, or none that is known here "
            f"(known: {', '.join(NAMES.values())})"
        )
    return NAMES[found]


def read_merges(document: Mapping[str, Json]) -> list[str]:
    """As GGUF has them: two tokens and a space between. Raises ExportRefused."""
    merges: list[str] = []
    for merge in document["model"]["merges"]:
        pair = merge.split(" ") if isinstance(merge, str) else list(merge)
        if len(pair) != 2 or not all(isinstance(part, str) and part and " " not in part for part in pair):
            raise ExportRefused(f"the tokenizer has a merge {str(merge)[:80]!r} that is not of two tokens")
        merges.append(" ".join(pair))
    return merges


def _steps(pre_tokenizer: Json) -> list[Json]:
    if isinstance(pre_tokenizer, dict) and pre_tokenizer.get("type") == "Sequence":
        return list(pre_tokenizer["pretokenizers"])
    return [] if pre_tokenizer is None else [pre_tokenizer]


def _find_pattern(steps: list[Json]) -> str | None:
    *first, last = steps
    if last.get("add_prefix_space"):
        return None
    if last.get("use_regex", True):
        digits = [{"type": "Digits", "individual_digits": True}]
        return _USUAL if not first else _DIGITS if first == digits else None
    if len(first) != 1 or first[0].get("type") != "Split":
        return None
    split = first[0]
    if split.get("behavior") != "Isolated" or split.get("invert"):
        return None
    pattern = split.get("pattern")
    found = pattern.get("Regex") if isinstance(pattern, dict) else None
    return found if isinstance(found, str) else None
