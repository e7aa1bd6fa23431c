from __future__ import annotations

import json
from typing import Any

import pytest

from chockstone.api.chat.call_constraints import call_constraint, refers_elsewhere, strict_constraint
from chockstone.api.chat.tool_calls import FORMATS, ToolCall, ToolCallParser
from chockstone.wire.codecs.sample_request import decode_constraint

CALL = ToolCall("add", '{"a": 1}')
JSON_FORMATS = [each for each in FORMATS if each != "qwen_xml"]


def tool(name: str, **parameters: object) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": {"type": "object", **parameters}}}


def parse(tool_format: str, text: str) -> list[str | ToolCall]:
    parser = ToolCallParser(tool_format)
    return [*parser.add(text), *parser.finish()]


@pytest.mark.parametrize("tool_format", JSON_FORMATS)
def test_an_answer_that_meets_the_constraint_is_a_call(tool_format: str) -> None:
    call = {"name": "add", "parameters" if tool_format == "llama3" else "arguments": {"a": 1}}
    written = json.dumps([call] if tool_format == "mistral" else call)

    for constraint in (
        call_constraint(tool_format, [tool("add")]),
        strict_constraint(tool_format, [tool("add")], {"add"}),
    ):
        assert constraint is not None
        text = constraint.get("prefix", "") + written + constraint.get("suffix", "")
        assert parse(tool_format, text) == [CALL]
        assert decode_constraint(constraint, "constraint") is not None


def test_calls_of_several_tools_are_choices() -> None:
    constraint = call_constraint("hermes", [tool("add"), tool("subtract")])

    assert constraint is not None
    names = [each["properties"]["name"]["const"] for each in constraint["json_schema"]["anyOf"]]
    assert names == ["add", "subtract"]


def test_arguments_of_tools_that_are_not_strict_are_any_object() -> None:
    tools = [tool("add", properties={"a": {"type": "integer"}}), tool("other", properties={"b": {}})]

    constraint = strict_constraint("hermes", tools, {"add"})

    assert constraint is not None
    first, second = (each["properties"]["arguments"] for each in constraint["json_schema"]["anyOf"])
    assert (first, second) == (tools[0]["function"]["parameters"], {"type": "object"})


@pytest.mark.parametrize("tool_format", ["hermes", "mistral"])
def test_references_lead_to_where_the_schema_went(tool_format: str) -> None:
    schema = {
        "properties": {
            "a": {"$ref": "#/$defs/A"},
            "$ref": {"type": "string"},
            "enum": {"enum": [{"$ref": "#/x"}]},
            "list": {"type": "array", "items": [{"$ref": "#"}]},
        },
        "$defs": {"A": {"type": "integer"}},
    }
    constraint = call_constraint(tool_format, [tool("other"), tool("add", **schema)])

    assert constraint is not None
    found = constraint["json_schema"]
    calls = found.get("items", found)["anyOf"]
    assert calls[1]["properties"]["arguments"] == {"$ref": "#/$defs/1"}
    moved = found["$defs"]["1"]
    assert moved["properties"] == {
        "a": {"$ref": "#/$defs/1/$defs/A"},
        "$ref": {"type": "string"},
        "enum": {"enum": [{"$ref": "#/x"}]},
        "list": {"type": "array", "items": [{"$ref": "#/$defs/1"}]},
    }
    assert moved["$defs"] == schema["$defs"]


ELSEWHERE: list[dict[str, Any]] = [
    {"$ref": "http://127.0.0.1/x"},
    {"$ref": "#pos"},
    {"$ref": ""},
    {"properties": {"a": {"$id": "x"}}},
]


@pytest.mark.parametrize("schema", ELSEWHERE)
def test_a_tool_that_is_not_strict_and_refers_elsewhere_takes_any_object(schema: dict[str, Any]) -> None:
    tools = [tool("other", **schema), tool("near", properties={"a": {}}), tool("add", properties={"b": {}})]

    constraint = call_constraint("hermes", tools, {"add"})

    assert constraint is not None
    held = [each["properties"]["arguments"] for each in constraint["json_schema"]["anyOf"]]
    assert held == [{"type": "object"}, *(each["function"]["parameters"] for each in tools[1:])]
    assert call_constraint("hermes", tools, {"other"}) is None
    assert [refers_elsewhere(each) for each in tools] == [True, False, False]


@pytest.mark.parametrize("schema", ELSEWHERE)
def test_what_is_no_json_or_refers_elsewhere_has_no_constraint(schema: dict[str, Any]) -> None:
    assert call_constraint("qwen_xml", [tool("add")]) is strict_constraint("qwen_xml", [tool("add")], {"add"}) is None
    assert call_constraint("hermes", [tool("add", **schema)]) is None
    assert strict_constraint("hermes", [tool("add", **schema)], {"add"}) is None
    assert strict_constraint("hermes", [tool("add", **schema), tool("b")], {"b"}) is not None


def test_an_answer_that_has_begun_is_no_bare_call() -> None:
    begun = strict_constraint("llama3", [tool("add")], {"add"}, has_text=True)

    assert begun is not None
    assert begun["bare"] is False
