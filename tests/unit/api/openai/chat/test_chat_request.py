from __future__ import annotations

import pytest

from chockstone.api.chat.request_fields import RequestFields
from chockstone.api.openai.chat.chat_request import read_chat_request
from chockstone.wire.failures import BadParameter
from support.chat import WEATHER

LEAST = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]}


def test_the_least_request_has_the_defaults_of_openai() -> None:
    request = read_chat_request(RequestFields(LEAST))

    assert (request.model, request.is_streamed, request.has_logprobs) == ("tiny", False, False)
    assert (request.parameters.temperature, request.parameters.top_p, request.parameters.choices) == (1.0, 1.0, 1)
    assert request.parameters.max_tokens is None
    assert not request.conversation.single_call


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_either_name_limits_the_tokens(name: str) -> None:
    assert read_chat_request(RequestFields({**LEAST, name: 7})).parameters.max_tokens == 7


def test_tools_and_options_reach_the_conversation() -> None:
    asked = {
        **LEAST,
        "tools": [WEATHER],
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "chat_template_kwargs": {"enable_thinking": False},
    }
    conversation = read_chat_request(RequestFields(asked)).conversation

    assert conversation.tools == [WEATHER]
    assert (conversation.tool_choice, conversation.single_call) == ("required", True)
    assert conversation.options == {"enable_thinking": False}


@pytest.mark.parametrize(
    ("sent", "constraint"),
    [
        ({"type": "text"}, None),
        ({"type": "json_object"}, {"json_object": True}),
        (
            {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "array"}, "strict": True}},
            {"json_schema": {"type": "array"}},
        ),
    ],
)
def test_a_format_is_a_constraint(sent: object, constraint: object) -> None:
    request = read_chat_request(RequestFields({**LEAST, "response_format": sent}))

    assert request.parameters.constraint == constraint


def test_a_format_goes_without_tools() -> None:
    asked = {**LEAST, "tools": [WEATHER], "response_format": {"type": "json_object"}}

    with pytest.raises(BadParameter, match="goes without tools"):
        read_chat_request(RequestFields(asked))
    assert read_chat_request(RequestFields({**asked, "tool_choice": "none"})).parameters.constraint


def test_a_format_that_is_not_supported_is_refused() -> None:
    with pytest.raises(BadParameter, match="response_format"):
        read_chat_request(RequestFields({**LEAST, "response_format": {"type": "grammar"}}))
