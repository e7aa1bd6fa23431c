"""Stops: whether the token just sampled ends its sequence."""

from __future__ import annotations

from collections.abc import Sequence as Many
from typing import Final

from transformers import PreTrainedTokenizerBase

from chockstone.wire.codecs.samples import SamplingParams

_BYTES_PER_CHARACTER: Final = 4  # UTF-8: a byte-level token may hold a quarter of a character
_CONTEXT: Final = 4  # additional tokens to decode, for tokenizers that treat the first word differently
_BROKEN: Final = "\ufffd"


class Stops:
    """The stops of one request. ``texts`` is shared by all requests of a tokenizer: the text of each single token."""

    def __init__(
        self,
        params: SamplingParams,
        *,
        eos_tokens: frozenset[int],
        tokenizer: PreTrainedTokenizerBase,
        texts: dict[int, str],
    ) -> None:
        self.tokens = frozenset(params.stop_tokens) | (eos_tokens if params.stops_at_eos else frozenset())
        self._strings = params.stop_strings
        self._tokenizer = tokenizer
        self._texts = texts
        self._last_characters = {string[-1] for string in self._strings}
        longest = max((len(string) for string in self._strings), default=0)
        self._window = longest * _BYTES_PER_CHARACTER + _CONTEXT

    def end(self, tokens: Many[int]) -> bool:
        """Whether the last of ``tokens`` completes a stop. Call this once after every sampled token."""
        if tokens[-1] in self.tokens:
            return True
        if not self._strings or not self._may_complete(tokens[-1]):
            return False
        text = self._decode(tokens[-self._window :])
        return any(string in text for string in self._strings)

    def _may_complete(self, token: int) -> bool:
        """A cheap check before a window is decoded: most tokens do not hold the last character of a stop."""
        text = self._texts.get(token)
        if text is None:
            text = self._texts[token] = self._decode([token])
        return any(last in text or last.isspace() for last in self._last_characters) or _BROKEN in text

    def _decode(self, tokens: Many[int]) -> str:
        text = self._tokenizer.decode(list(tokens), skip_special_tokens=False, clean_up_tokenization_spaces=False)
        assert isinstance(text, str)
        return text
