from __future__ import annotations

from typing import Any

import pytest

from chockstone.api.chat.orders import NamedTool
from chockstone.api.chat.request_fields import RequestFields
from chockstone.api.openai.chat.chat_messages import (
    call_as_templates_read_it,
    read_content,
    read_messages,
    read_tool_choice,
    read_tools,
)
from chockstone.wire.failures import BadParameter
from support.chat import WEATHER


def call_of(arguments: str) -> dict[str, Any]:
    return {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": arguments}}


def test_messages_are_those_that_templates_read() -> None:
    sent = [
        {"role": "developer", "content": "Be brief.", "name": "boss"},
        {"role": "assistant", "content": None, "tool_calls": [call_of('{"city": "Oslo"}')], "refusal": None},
        {"role": "tool", "content": "sunny", "tool_call_id": "c1"},
        {"role": "assistant", "content": [{"type": "text", "text": "It is "}, {"type": "text", "text": "sunny."}]},
        {"role": "assistant", "content": None, "refusal": "No.", "provider_specific_fields": {"refusal": "No."}},
    ]

    assert read_messages(RequestFields({"messages": sent})) == [
        {"role": "system", "content": "Be brief.", "name": "boss"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": {"city": "Oslo"}}}
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "sunny"},
        {"role": "assistant", "content": "It is sunny."},
        {"role": "assistant", "content": "No."},
    ]


@pytest.mark.parametrize(
    ("sent", "read"),
    [
        ("", {}),
        ('{"a": 1}', {"a": 1}),
        ('{"a": 1180591620717411303424}', {"a": 2**70}),
        *((text, text) for text in ("[1]", "not JSON", '{"a": NaN}', '{"a": "\\ud800"}', '{"a":' * 2000)),
    ],
)
def test_arguments_are_an_object_where_they_can_be_one(sent: str, read: Any) -> None:
    assert call_as_templates_read_it("c1", "f", sent)["function"]["arguments"] == read


def test_a_tool_without_parameters_takes_none() -> None:
    sent = {"tools": [{"type": "function", "function": {"name": "now"}}]}
    [tool] = read_tools(RequestFields(sent), inner="function").tools

    assert tool["function"] == {"name": "now", "parameters": {"type": "object", "properties": {}}}


def test_tools_of_a_response_get_the_shape_of_a_chat_completion() -> None:
    function = WEATHER["function"]
    assert isinstance(function, dict)

    sent = {"tools": [{"type": "function", **function, "strict": True}, {"type": "function", "name": "b"}]}
    offered = read_tools(RequestFields(sent), inner=None)

    assert offered.tools[0] == WEATHER  # the template does not see ``strict``
    assert offered.strict == {"weather"}


def test_a_tool_choice_names_a_tool() -> None:
    for chosen in ({"type": "function", "function": {"name": "weather"}}, {"type": "function", "name": "weather"}):
        assert read_tool_choice(RequestFields({"tool_choice": chosen}), [WEATHER]) == NamedTool("weather")
    assert read_tool_choice(RequestFields({}), [WEATHER]) == "auto"
    assert read_tool_choice(RequestFields({"tool_choice": "none"}), []) == "none"


@pytest.mark.parametrize("value", [3, {}, [3], [{}], [{"type": "text"}], [{"type": "text", "text": 3}]])
def test_content_that_is_no_text_is_refused(value: Any) -> None:
    with pytest.raises(BadParameter) as caught:
        read_content(RequestFields({"content": value}), "content")
    assert caught.value.param.startswith("content")
