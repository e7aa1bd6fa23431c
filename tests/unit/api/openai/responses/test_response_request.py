from __future__ import annotations

from chockstone.api.chat.orders import NamedTool
from chockstone.api.chat.request_fields import RequestFields
from chockstone.api.openai.responses.response_request import read_response_request
from support.chat import WEATHER


def test_a_request_is_read() -> None:
    function = WEATHER["function"]
    assert isinstance(function, dict)
    asked = {
        "model": "tiny",
        "input": "Hi",
        "max_output_tokens": 5,
        "tools": [{"type": "function", **function}],
        "tool_choice": {"type": "function", "name": "weather"},
        "include": ["message.output_text.logprobs"],
        "top_logprobs": 2,
        "text": {"format": {"type": "text"}, "verbosity": "medium"},
        "reasoning": {},
    }
    request = read_response_request(RequestFields(asked))

    assert request.parameters.max_tokens == 5
    assert request.conversation.tool_choice == NamedTool("weather")
    assert (request.has_logprobs, request.parameters.alternatives) == (True, 2)
    assert request.tool_choice == {"type": "function", "name": "weather"}


def test_a_format_is_a_constraint_and_is_answered_as_it_was_sent() -> None:
    sent = {"type": "json_schema", "name": "n", "schema": {"type": "array"}}
    request = read_response_request(RequestFields({"model": "tiny", "input": "Hi", "text": {"format": sent}}))

    assert request.parameters.constraint == {"json_schema": {"type": "array"}}
    assert request.text_format == sent
