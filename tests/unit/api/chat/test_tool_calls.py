from __future__ import annotations

import json
import time

import pytest

from chockstone.api.chat.tool_calls import ToolCall, ToolCallParser, forced_beginning

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


def test_what_follows_text_that_the_client_wrote_is_no_bare_call() -> None:
    parser = ToolCallParser("llama3", has_text=True)

    assert "".join(map(str, [*parser.add(WRITTEN["llama3"]), *parser.finish()])) == WRITTEN["llama3"]


@pytest.mark.parametrize("value", ["NaN", "[Infinity]", "1e999", '"\\ud800"'])
def test_a_call_is_json_that_every_client_reads(value: str) -> None:
    hermes = f'<tool_call>{{"name": "add", "arguments": {{"a": {value}}}}}</tool_call>'
    xml = f"<tool_call><function=add><parameter=a>{value}</parameter></function></tool_call>"

    assert parse("hermes", hermes, step=1000) == [hermes], "as the model wrote it"
    assert parse("qwen_xml", xml, step=1000) == [ToolCall("add", json.dumps({"a": value}))]


@pytest.mark.parametrize("written", ["<function=", "<function=a>\n<parameter=", "<function=a>" + "<parameter=a>" * 9])
def test_a_call_that_begins_again_and_again_is_read_in_time(written: str) -> None:
    text = f"<tool_call>{written * (200_000 // len(written))}</tool_call>"

    began = time.process_time()
    parse("qwen_xml", text, step=len(text))

    assert time.process_time() - began < 1
