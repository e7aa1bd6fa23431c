"""Tokenizers made of sentencepiece's: spaces are written as ``▁``, and characters without a token as bytes.

GGUF has scores of such tokens instead of merges: llama.cpp joins the pair whose token has the highest score, and the
leftmost of several. The scores written here are the order of the merges. That joins the same pairs only if all merges
into one token stand together, and if any two tokens whose text together is a token can be merged; others are refused.
Tokens that repeat one character, such as runs of spaces, may stand mixed: they get one score.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

from chockstone.checkpoints.errors import ExportRefused

Json = Any  # plain JSON
LLAMA: Final = "llama"  # how GGUF calls tokenizers of this kind
SPACE: Final = "\u2581"
BYTES: Final = frozenset(f"<0x{byte:02X}>" for byte in range(256))
_REPLACED: Final = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
_PREPENDED: Final = {"type": "Prepend", "prepend": SPACE}
_SPLIT: Final = {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False}


def is_sentencepiece(document: Mapping[str, Json]) -> bool:
    return document["model"].get("byte_fallback") is True


def adds_space(document: Mapping[str, Json]) -> bool:
    """Whether a text is read as if it began with a space. Raises ExportRefused if spaces are treated in another way."""
    normalizer, pre_tokenizer = document.get("normalizer"), document.get("pre_tokenizer")
    if normalizer == {"type": "Sequence", "normalizers": [_PREPENDED, _REPLACED]} and pre_tokenizer is None:
        return True
    if normalizer == _REPLACED and pre_tokenizer in (None, _SPLIT):
        return False
    if normalizer is None and isinstance(pre_tokenizer, dict) and pre_tokenizer.get("type") == "Metaspace":
        scheme = pre_tokenizer.get("prepend_scheme", "always")
        if pre_tokenizer.get("replacement") == SPACE and pre_tokenizer.get("split") is False:
            return bool(scheme != "never")
    raise ExportRefused(
        "the tokenizer treats spaces in a way that llama.cpp does not: "
        f"normalizer {str(normalizer)[:150]}, pre_tokenizer {str(pre_tokenizer)[:150]}"
    )


def spares_space(document: Mapping[str, Json]) -> bool:
    """Whether some texts are read without that space: those that begin with one, and perhaps those behind a token."""
    return document.get("pre_tokenizer") is not None and adds_space(document)


def score_tokens(document: Mapping[str, Json], plain: Collection[str]) -> dict[str, float]:
    """The scores of tokens that merges make. ``plain``: the tokens that text can become. Raises ExportRefused."""
    pairs = [tuple(_halves(merge)) for merge in document["model"]["merges"]]
    scores = _order("".join(pair) for pair in pairs)
    known = set(pairs)
    for token in plain:
        for cut in range(1, len(token)):
            pair = (token[:cut], token[cut:])
            if pair[0] in plain and pair[1] in plain and pair not in known:
                raise ExportRefused(f"it does not merge {pair[0]!r:.80} and {pair[1]!r:.80}, and llama.cpp would")
    return scores


def _halves(merge: Json) -> list[str]:
    return merge.split(" ", 1) if isinstance(merge, str) else merge


def _order(tokens: Iterable[str]) -> dict[str, float]:
    """A score for each token, the highest for the first. Raises ExportRefused if one stands in several places."""
    groups: list[list[str]] = []  # with one score each
    place: dict[str, int] = {}
    for token in tokens:
        first = place.setdefault(token, len(groups))
        if first == len(groups):
            groups.append([token])
        elif first < len(groups) - 1:
            mixed = [each for group in groups[first:] for each in group]
            if any(len(set(each)) > 1 for each in mixed):
                raise ExportRefused(f"its merges into {token!r:.80} do not stand together")
            groups[first:] = [mixed]
            place |= dict.fromkeys(mixed, first)
    return {token: -float(number) for number, group in enumerate(groups) for token in group}
