from __future__ import annotations

import json
from typing import Any

import pytest

from chockstone.api.chat.tool_calls import FORMATS, ToolCall, ToolCallParser, call_constraint, forced_beginning

CALL = ToolCall("add", '{"a": 1}')
WRITTEN = {
    "hermes": '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>',
    "qwen_xml": "<tool_call>\n<function=add>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>",
    "mistral": '[TOOL_CALLS][{"name": "add", "arguments": {"a": 1}}]',
    "llama3": '{"name": "add", "parameters": {"a": 1}}',
}


def parse(tool_format: str, text: str, *, step: int) -> list[str | ToolCall]:
    parser = ToolCallParser(tool_format)
    parts = [part for begin in range(0, len(text), step) for part in parser.add(text[begin : begin + step])]
    return [*parts, *parser.finish()]


@pytest.mark.parametrize("step", [1, 5, 1000])
@pytest.mark.parametrize("tool_format", list(WRITTEN))
def test_a_call_is_found_however_its_text_is_cut(tool_format: str, step: int) -> None:
    assert parse(tool_format, WRITTEN[tool_format], step=step) == [CALL]


@pytest.mark.parametrize("step", [1, 1000])
def test_text_before_calls_goes_through(step: int) -> None:
    found = parse("hermes", f"I < you. {WRITTEN['hermes']}{WRITTEN['hermes']}", step=step)

    assert "".join(part for part in found if isinstance(part, str)) == "I < you. "
    assert [part for part in found if isinstance(part, ToolCall)] == [CALL, CALL]


@pytest.mark.parametrize("text", ["<tool_call>nonsense</tool_call>", "<tool_call>" + "[" * 100_000, "<tool_"])
def test_what_is_no_call_is_text(text: str) -> None:
    assert "".join(str(part) for part in parse("hermes", text, step=50_000)) == text


@pytest.mark.parametrize("tool_format", list(WRITTEN))
def test_a_forced_beginning_is_one_of_a_call(tool_format: str) -> None:
    begin = forced_beginning(tool_format, "add")
    rest = {"hermes": '{"a": 1}}</tool_call>', "mistral": '{"a": 1}}]', "llama3": '{"a": 1}}'}
    text = begin + rest.get(tool_format, "<parameter=a>\n1\n</parameter>\n</function></tool_call>")

    assert begin.startswith(forced_beginning(tool_format, None))
    assert parse(tool_format, text, step=7) == [CALL]


def tool(name: str, **parameters: object) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": {"type": "object", **parameters}}}


@pytest.mark.parametrize("tool_format", [each for each in FORMATS if each != "qwen_xml"])
def test_an_answer_that_meets_the_constraint_is_a_call(tool_format: str) -> None:
    constraint = call_constraint(tool_format, [tool("add")])
    assert constraint is not None
    call = {"name": "add", "parameters" if tool_format == "llama3" else "arguments": {"a": 1}}
    written = json.dumps([call] if tool_format == "mistral" else call)
    text = constraint.get("prefix", "") + written + constraint.get("suffix", "")

    assert parse(tool_format, text, step=3) == [CALL]


def test_calls_of_several_tools_are_choices() -> None:
    constraint = call_constraint("hermes", [tool("add"), tool("subtract")])

    assert constraint is not None
    names = [each["properties"]["name"]["const"] for each in constraint["json_schema"]["anyOf"]]
    assert names == ["add", "subtract"]


def test_what_is_no_json_or_refers_to_its_root_has_no_constraint() -> None:
    assert call_constraint("qwen_xml", [tool("add")]) is None
    assert call_constraint("hermes", [tool("add", properties={"a": {"$ref": "#/$defs/A"}})]) is None
