from __future__ import annotations

import time
from typing import Any

import pytest

from chockstone.api.anthropic.content import MOST_MESSAGES, read_messages, read_system, read_tools
from chockstone.api.chat.request_fields import RequestFields
from chockstone.wire.failures import BadParameter

CALL = {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Oslo"}}
RESULT = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "rain"}


def said(*messages: dict[str, Any]) -> list[dict[str, Any]]:
    told, begin = read_messages(RequestFields({"messages": list(messages)}))
    assert begin == ""
    return told


def user(*blocks: dict[str, Any] | str) -> dict[str, Any]:
    return {"role": "user", "content": blocks[0] if isinstance(blocks[0], str) else list(blocks)}


def assistant(*blocks: dict[str, Any]) -> dict[str, Any]:
    return {"role": "assistant", "content": list(blocks)}


def text(words: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": words, **more}


def test_text_is_the_same_as_a_string_and_as_blocks() -> None:
    assert said(user("Hi")) == said(user(text("Hi", cache_control={"type": "ephemeral"})))
    assert said(user(text("a"), text("b"))) == [{"role": "user", "content": "a\nb"}]
    assert said(user("a"), user("b")) == [{"role": "user", "content": "a\nb"}]


def test_what_the_assistant_wrote_comes_back_as_it_wrote_it() -> None:
    told = said(user("a"), assistant(text("b"), text(" c")), {"role": "assistant", "content": "d"}, user("e"))

    assert told[1] == {"role": "assistant", "content": "b cd"}


def test_a_last_message_of_the_assistant_is_the_beginning_of_the_answer() -> None:
    messages = [user("a"), assistant(text("It"), text(" is "))]

    assert read_messages(RequestFields({"messages": messages})) == ([{"role": "user", "content": "a"}], "It is ")


def test_a_system_prompt_is_the_first_message() -> None:
    assert read_system(RequestFields({})) == read_system(RequestFields({"system": ""})) == []
    assert read_system(RequestFields({"system": "Be short."})) == [{"role": "system", "content": "Be short."}]
    blocks = RequestFields({"system": [text("a"), text("b", cache_control={"type": "ephemeral"})]})
    assert read_system(blocks) == [{"role": "system", "content": "a\nb"}]
    assert said(user("a"), {"role": "system", "content": "b"}, user("c"))[1] == {"role": "system", "content": "b"}


def test_calls_and_results_are_as_chat_templates_read_them() -> None:
    told = said(user("Weather?"), assistant(text("Let me see."), CALL), user(RESULT, text("And?")))

    assert told[1:] == [
        {
            "role": "assistant",
            "content": "Let me see.",
            "tool_calls": [
                {"id": "toolu_1", "type": "function", "function": {"name": "weather", "arguments": {"city": "Oslo"}}}
            ],
        },
        {"role": "tool", "tool_call_id": "toolu_1", "name": "weather", "content": "rain"},
        {"role": "user", "content": "And?"},
    ]


def test_a_result_may_be_blocks_an_error_or_nothing() -> None:
    second, third = {**CALL, "id": "toolu_2"}, {**CALL, "id": "toolu_3"}
    told = said(
        user("Weather?"),
        assistant(CALL, second, third),
        user({**RESULT, "content": [text("rain"), text("wind")]}),
        user({**RESULT, "tool_use_id": "toolu_2", "is_error": True}),
        user({"type": "tool_result", "tool_use_id": "toolu_3"}),
    )

    assert [message["content"] for message in told[2:]] == ["rain\nwind", "Error: rain", ""]


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        (None, "messages"),
        ([], "messages"),
        ({}, "messages"),
        ("Hi", "messages"),
        ([user("Hi")] * (MOST_MESSAGES + 1), "messages"),
        (["Hi"], "messages[0]"),
        ([{"content": "Hi"}], "messages[0].role"),
        ([{"role": "tool", "content": "Hi"}], "messages[0].role"),
        ([{"role": "user"}], "messages[0].content"),
        ([{"role": "user", "content": 5}], "messages[0].content"),
        ([{"role": "user", "content": "Hi", "name": "x"}], "messages[0].name"),
        ([user({"text": "Hi"})], "messages[0].content[0].type"),
        ([user({"type": "image", "source": {}})], "messages[0].content[0].type"),
        ([user({"type": "document", "source": {}})], "messages[0].content[0].type"),
        ([user({"type": "text"})], "messages[0].content[0].text"),
        ([user(text("Hi", citations={"enabled": True}))], "messages[0].content[0].citations"),
        ([user(text("Hi", more=1))], "messages[0].content[0].more"),
        ([assistant(text("A"))], "messages"),
        ([{"role": "user", "content": []}], "messages"),
        ([{"role": "user", "content": []}, assistant(text("A"))], "messages"),
        ([user("Hi"), assistant({"type": "thinking", "thinking": "", "signature": ""})], "messages[1].content[0].type"),
        ([user(RESULT)], "messages[0].content[0].tool_use_id"),
        ([user("Hi"), assistant(CALL), user("Well?")], "messages"),
        ([user("Hi"), assistant(CALL), user("Well?"), assistant(text("A"))], "messages[3].content"),
        ([user("Hi"), assistant(CALL), user(RESULT, RESULT)], "messages[2].content[1].tool_use_id"),
        ([user("Hi"), assistant(CALL, CALL), user(RESULT)], "messages[1].content[1].id"),
        ([user("Hi"), assistant({**CALL, "input": "x"}), user(RESULT)], "messages[1].content[0].input"),
        ([user("Hi"), assistant({**CALL, "name": "a b"}), user(RESULT)], "messages[1].content[0].name"),
        ([user("Hi"), assistant({**CALL, "caller": {"type": "code_execution_20260120", "tool_id": "x"}})], None),
        ([user("Hi"), assistant(CALL), user({**RESULT, "content": [{"type": "image"}]})], None),
    ],
)
def test_what_is_wrong_or_not_supported_is_named(messages: Any, param: str | None) -> None:
    with pytest.raises(BadParameter) as refused:
        read_messages(RequestFields({"messages": messages}))

    assert refused.value.param.startswith("messages")
    assert param in (None, refused.value.param)
    assert len(str(refused.value)) < 1000


def test_tools_are_as_chat_templates_read_them() -> None:
    schema = {"type": "object", "properties": {"city": {"type": "string"}}}
    tool = {
        "name": "weather",
        "description": "Of a city.",
        "input_schema": schema,
        "cache_control": {},
        "strict": False,
    }

    [told], strict = read_tools(RequestFields({"tools": [tool]}))

    function = {"name": "weather", "description": "Of a city.", "parameters": schema}
    assert told == {"type": "function", "function": function}
    assert strict == frozenset()
    assert read_tools(RequestFields({"tools": [{**tool, "strict": True}]})) == ([told], {"weather"})
    assert read_tools(RequestFields({})) == ([], frozenset())


@pytest.mark.parametrize(
    ("tools", "param"),
    [
        ("x", "tools"),
        ([5], "tools[0]"),
        ([{"type": "web_search_20250305", "name": "web_search"}], "tools[0].type"),
        ([{"type": "bash_20250124", "name": "bash"}], "tools[0].type"),
        ([{"input_schema": {}}], "tools[0].name"),
        ([{"name": "<tool_call>", "input_schema": {}}], "tools[0].name"),
        ([{"name": "a"}], "tools[0].input_schema"),
        ([{"name": "a", "input_schema": []}], "tools[0].input_schema"),
        ([{"name": "a", "input_schema": {}}, {"name": "a", "input_schema": {}}], "tools[1].name"),
        ([{"name": "a", "input_schema": {}, "strict": "yes"}], "tools[0].strict"),
        ([{"name": "a", "input_schema": {}, "defer_loading": True}], "tools[0].defer_loading"),
        ([{"name": "a", "input_schema": {}, "allowed_callers": ["code"]}], "tools[0].allowed_callers"),
        ([{"name": "a", "input_schema": {}, "input_examples": [{}]}], "tools[0].input_examples"),
        ([{"name": "a", "input_schema": {}, "more": 1}], "tools[0].more"),
    ],
)
def test_tools_that_are_wrong_or_not_ours_to_run_are_named(tools: Any, param: str) -> None:
    with pytest.raises(BadParameter) as refused:
        read_tools(RequestFields({"tools": tools}))

    assert refused.value.param == param


def test_many_blocks_behind_a_long_one_are_read_in_time() -> None:
    blocks = [text("x" * 4_000_000), *[text("a")] * 9_000]

    began = time.process_time()
    told = [said(user(*blocks)), said(user("a"), assistant(*blocks), user("b"))]

    assert time.process_time() - began < 1
    assert len(told[0][0]["content"]) == 4_000_000 + 2 * 9_000
    assert len(told[1][1]["content"]) == 4_000_000 + 9_000
