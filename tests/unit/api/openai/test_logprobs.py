from __future__ import annotations

import math

from chockstone.api.chat.generation import SampledText
from chockstone.api.openai.logprobs import CompletionLogprobs, chat_logprobs

HALVES = "é".encode()
TOKENS = [
    SampledText(1, b"a", -0.5, ((1, b"a", -0.5), (2, b"b", -math.inf))),
    SampledText(3, HALVES[:1], -1.0),
    SampledText(4, HALVES[1:], -1.5),
    SampledText(5, b"z", -2.0),
]


def test_a_token_has_its_bytes_and_alternatives() -> None:
    first, second, *_ = chat_logprobs(TOKENS)["content"]

    assert (first["token"], first["bytes"], first["logprob"]) == ("a", [97], -0.5)
    assert [(each["token"], each["logprob"]) for each in first["top_logprobs"]] == [("a", -0.5), ("b", -9999.0)]
    assert second["bytes"] == list(HALVES[:1])


def test_offsets_count_characters_of_the_text_over_all_pieces() -> None:
    logprobs = CompletionLogprobs()
    first, second = logprobs.encode(TOKENS[:2]), logprobs.encode(TOKENS[2:])

    assert first["text_offset"] + second["text_offset"] == [0, 1, 1, 2]
    assert first["top_logprobs"][0] == {"a": -0.5, "b": -9999.0}
    assert second["token_logprobs"] == [-1.5, -2.0]
