from __future__ import annotations

from typing import Any

import pytest

from chockstone.api.chat.orders import PlainPrompt, TokenPrompt
from chockstone.api.chat.request_fields import RequestFields
from chockstone.api.openai.completions.completion_request import DEFAULT_TOKENS, read_completion_request


@pytest.mark.parametrize(
    ("sent", "prompts"),
    [
        ("a", (PlainPrompt("a"),)),
        ([1, 2], (TokenPrompt((1, 2)),)),
        (["a", "b"], (PlainPrompt("a"), PlainPrompt("b"))),
        ([[1], [2, 3]], (TokenPrompt((1,)), TokenPrompt((2, 3)))),
    ],
)
def test_a_prompt_is_text_or_tokens_or_several(sent: Any, prompts: Any) -> None:
    assert read_completion_request(RequestFields({"model": "tiny", "prompt": sent})).prompts == prompts


def test_the_least_request_has_the_defaults_of_openai() -> None:
    request = read_completion_request(RequestFields({"model": "tiny", "prompt": "a"}))

    assert (request.parameters.max_tokens, request.has_logprobs) == (DEFAULT_TOKENS, False)


def test_no_alternatives_are_logprobs_too() -> None:
    request = read_completion_request(RequestFields({"model": "tiny", "prompt": "a", "logprobs": 0}))

    assert (request.has_logprobs, request.parameters.alternatives) == (True, 0)
