"""Logprobs as OpenAI's clients read them."""

from __future__ import annotations

import codecs
import math
from collections.abc import Iterable
from typing import Any, Final

from chockstone.api.chat.generation import SampledText

_LOWEST: Final = -9999.0  # of a token that the model would never write; JSON has no infinity


def chat_logprobs(tokens: Iterable[SampledText]) -> dict[str, Any]:  # Any: plain JSON
    """All sampled tokens, the one that ended the answer too."""
    content = [
        {
            **_entry(each.data, each.logprob),
            "top_logprobs": [_entry(data, logprob) for _, data, logprob in each.alternatives],
        }
        for each in tokens
    ]
    return {"content": content, "refusal": None}


class CompletionLogprobs:
    """Of one choice of a completion: lists, with the place of each token in the text."""

    def __init__(self) -> None:
        self._offset = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def encode(self, tokens: Iterable[SampledText]) -> dict[str, Any]:  # Any: plain JSON
        found: dict[str, Any] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        for each in tokens:
            found["tokens"].append(_text(each.data))
            found["token_logprobs"].append(_finite(each.logprob))
            found["top_logprobs"].append({_text(data): _finite(logprob) for _, data, logprob in each.alternatives})
            found["text_offset"].append(self._offset)
            self._offset += len(self._decoder.decode(each.data))
        return found


def _entry(data: bytes, logprob: float) -> dict[str, Any]:  # Any: plain JSON
    return {"token": _text(data), "bytes": list(data), "logprob": _finite(logprob)}


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def _finite(logprob: float) -> float:
    return logprob if math.isfinite(logprob) else _LOWEST
