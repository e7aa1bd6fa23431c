from __future__ import annotations

from typing import Any

import pytest

from chockstone.api.anthropic.message_request import MessageRequest, read_count_request, read_message_request
from chockstone.api.chat.orders import NamedTool
from chockstone.api.chat.request_fields import RequestFields
from chockstone.wire.failures import BadParameter

TOOL = {"name": "weather", "input_schema": {"type": "object"}}
FORMAT = {"type": "json_schema", "schema": {"type": "object"}}
BEGUN = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "It is"}]
PLAIN: dict[str, Any] = {"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "Hi"}]}


def asked(**more: Any) -> MessageRequest:
    return read_message_request(RequestFields({**PLAIN, **more}))


def test_a_plain_request_has_the_defaults() -> None:
    found = asked()

    assert (found.model, found.is_stream, found.conversation.tools) == ("m", False, [])
    parameters = found.parameters
    assert (parameters.max_tokens, parameters.temperature, parameters.top_p, parameters.top_k) == (5, 1.0, 1.0, -1)
    assert (parameters.seed, parameters.stop, parameters.choices) == (None, (), 1)


def test_parameters_of_sampling_are_read() -> None:
    found = asked(temperature=0, top_p=0.5, top_k=3, seed=7, stop_sequences=["a", "b"], stream=True)

    parameters = found.parameters
    assert (parameters.temperature, parameters.top_p, parameters.top_k) == (0.0, 0.5, 3)
    assert (parameters.seed, parameters.stop, found.is_stream) == (7, ("a", "b"), True)
    assert asked(top_k=0).parameters.top_k == -1


def test_the_choice_of_tools_is_read() -> None:
    def choice(**given: Any) -> tuple[Any, bool]:
        conversation = asked(tools=[TOOL], tool_choice=given).conversation
        return conversation.tool_choice, conversation.single_call

    assert choice(type="auto") == ("auto", False)
    assert choice(type="any", disable_parallel_tool_use=True) == ("required", True)
    assert choice(type="tool", name="weather") == (NamedTool("weather"), False)
    assert choice(type="none") == ("none", False)
    assert asked(tools=[TOOL]).conversation.tool_choice == "auto"


def test_what_changes_nothing_here_is_accepted() -> None:
    hints = {
        "metadata": {"user_id": "u"},
        "service_tier": "auto",
        "cache_control": {"type": "ephemeral"},
        "output_config": {"effort": "high"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "thinking": {"type": "adaptive"},
        "speed": "standard",
        "container": None,
        "mcp_servers": [],
    }

    assert asked(**hints).conversation == asked().conversation
    assert asked(**hints).parameters == asked().parameters


def test_a_client_that_wants_no_thinking_tells_the_template() -> None:
    assert asked(thinking={"type": "disabled"}).conversation.options == {"enable_thinking": False}


@pytest.mark.parametrize(
    ("field", "value", "param"),
    [
        ("model", None, "model"),
        ("model", 5, "model"),
        ("max_tokens", None, "max_tokens"),
        ("max_tokens", 0, "max_tokens"),
        ("max_tokens", True, "max_tokens"),
        ("max_tokens", "5", "max_tokens"),
        ("temperature", 2.5, "temperature"),
        ("temperature", -1, "temperature"),
        ("top_p", 0, "top_p"),
        ("top_k", -1, "top_k"),
        ("top_k", 10**30, "top_k"),
        ("stream", "yes", "stream"),
        ("system", {"type": "text"}, "system"),
        ("stop_sequences", "END", "stop_sequences"),
        ("stop_sequences", [""], "stop_sequences[0]"),
        ("stop_sequences", ["a"] * 300, "stop_sequences"),
        ("stop_sequences", ["a" * 10_001], "stop_sequences[0]"),
        ("metadata", "u", "metadata"),
        ("thinking", {"type": "enabled", "budget_tokens": 1024}, "thinking.type"),
        ("thinking", {"type": "between_tools"}, "thinking.type"),
        ("thinking", {}, "thinking.type"),
        ("container", "c", "container"),
        ("mcp_servers", [{"type": "url", "url": "x", "name": "x"}], "mcp_servers"),
        ("inference_geo", "us", "inference_geo"),
        ("speed", "fast", "speed"),
        ("output_config", {"format": {"type": "text"}}, "output_config.format.type"),
        ("output_config", {"format": {"schema": {}}}, "output_config.format.type"),
        ("output_config", {"format": {"type": "json_schema"}}, "output_config.format.schema"),
        ("output_config", {"format": FORMAT, "more": 1}, "output_config.more"),
        ("output_format", {**FORMAT, "name": "x"}, "output_format.name"),
        ("context_management", {"edits": [{"type": "clear_tool_uses_20250919"}]}, "context_management.edits[0].type"),
        ("tool_choice", {"type": "any"}, "tool_choice.type"),
        ("tool_choice", {"type": "some"}, "tool_choice.type"),
        ("tool_choice", "auto", "tool_choice"),
        ("prompt", "Hi", "prompt"),
        ("logit_bias", {}, "logit_bias"),
    ],
)
def test_what_is_wrong_or_not_supported_is_named(field: str, value: Any, param: str) -> None:
    with pytest.raises(BadParameter) as refused:
        asked(**{field: value})

    assert refused.value.param == param
    assert param.partition("[")[0] in str(refused.value)


def test_a_format_is_a_constraint_under_its_old_name_too() -> None:
    for given in ({"output_config": {"format": FORMAT, "effort": "low"}}, {"output_format": FORMAT}):
        assert asked(**given).parameters.constraint == {"json_schema": {"type": "object"}}
    assert asked(output_config={"format": FORMAT}, tools=[TOOL], tool_choice={"type": "none"}).parameters.constraint


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"output_config": {"format": FORMAT}, "output_format": FORMAT}, "output_format"),
        ({"output_config": {"format": FORMAT}, "tools": [TOOL]}, "output_config"),
        ({"output_config": {"format": FORMAT}, "messages": BEGUN}, "messages"),
        ({"tools": [TOOL], "tool_choice": {"type": "any"}, "messages": BEGUN}, "messages"),
    ],
)
def test_what_does_not_go_together_is_named(more: dict[str, Any], param: str) -> None:
    with pytest.raises(BadParameter) as refused:
        asked(**more)

    assert refused.value.param == param


def test_an_answer_that_has_begun_is_of_no_message() -> None:
    conversation = asked(messages=BEGUN, tools=[{**TOOL, "strict": True}]).conversation

    assert (conversation.messages, conversation.begin) == ([BEGUN[0]], "It is")
    assert conversation.strict_tools == {"weather"}


def test_a_tool_that_is_to_be_called_must_be_there() -> None:
    with pytest.raises(BadParameter, match="none of the tools"):
        asked(tools=[TOOL], tool_choice={"type": "tool", "name": "other"})


def test_a_count_needs_no_limit_of_the_answer() -> None:
    body = {name: value for name, value in PLAIN.items() if name != "max_tokens"}

    assert read_count_request(RequestFields(body)).conversation == asked().conversation
    with pytest.raises(BadParameter, match="unknown"):
        read_count_request(RequestFields({**body, "unknown": 1}))
