from __future__ import annotations

import json
from typing import Any

import pytest

from chockstone.api.anthropic.answers import AnswerBlocks, encode_message, ending_of, server_sent, tool_use
from chockstone.api.chat.generation import Finish
from chockstone.api.chat.tool_calls import ToolCall

OSLO = ToolCall("weather", '{"city": "Oslo"}')


def told(*pieces: list[str | ToolCall]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The blocks, and the events that tell them."""
    answer = AnswerBlocks()
    events = [event for parts in pieces for event in answer.add(parts)]
    return answer.blocks, [*events, *answer.finish()]


def rebuilt(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What a client makes of the events; fails if they are not in order."""
    blocks: list[dict[str, Any]] = []
    is_open, arguments = False, ""
    for event in events:
        match event["type"]:
            case "content_block_start":
                assert not is_open
                assert event["index"] == len(blocks)
                blocks.append(dict(event["content_block"]))
                is_open, arguments = True, ""
            case "content_block_delta":
                assert is_open
                assert event["index"] == len(blocks) - 1
                if event["delta"]["type"] == "text_delta":
                    blocks[-1]["text"] += event["delta"]["text"]
                else:
                    arguments += event["delta"]["partial_json"]
            case "content_block_stop":
                assert is_open
                assert event["index"] == len(blocks) - 1
                if arguments:
                    blocks[-1]["input"] = json.loads(arguments)
                is_open = False
    assert not is_open
    return blocks


def plain(blocks: list[dict[str, Any]]) -> list[Any]:
    return [block["text"] if block["type"] == "text" else (block["name"], block["input"]) for block in blocks]


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        ([["Hel"], ["lo."]], ["Hello."]),
        ([[" Hello."], [" "], ["World "]], [" Hello. World "]),
        ([], [""]),
        ([["\n"]], ["\n"]),
        ([["One. "], ["\n"]], ["One. \n"]),
        ([[OSLO], ["\n"]], [("weather", {"city": "Oslo"})]),
        ([["\n", OSLO, "\n"]], [("weather", {"city": "Oslo"})]),
        ([["Let me see.\n"], ["\n", OSLO], ["\n", OSLO]], ["Let me see.", *[("weather", {"city": "Oslo"})] * 2]),
        ([[OSLO], ["\n"], ["Done."]], [("weather", {"city": "Oslo"}), "Done."]),
        ([[ToolCall("f", "[1]")]], ['{"name": "f", "arguments": [1]}']),
        ([[ToolCall("f", "{"), " more"]], ['{"name": "f", "arguments": {} more']),
        ([[ToolCall("f", "{}")]], [("f", {})]),
    ],
)
def test_events_tell_the_blocks_of_the_answer(pieces: list[list[str | ToolCall]], expected: list[Any]) -> None:
    blocks, events = told(*pieces)

    assert plain(blocks) == expected
    assert rebuilt(events) == blocks


def test_each_call_has_an_id_of_its_own() -> None:
    blocks, _ = told([OSLO, OSLO])

    assert blocks[0]["id"] != blocks[1]["id"]
    assert tool_use(ToolCall("f", "[" * 100_000)) is None


@pytest.mark.parametrize(
    ("finish", "has_calls", "is_cut_by_context", "expected"),
    [
        (Finish("stop"), False, True, ("end_turn", None)),
        (Finish("stop", "END"), False, True, ("stop_sequence", "END")),
        (Finish("length"), False, False, ("max_tokens", None)),
        (Finish("length"), True, True, ("model_context_window_exceeded", None)),
        (Finish("tool_calls"), True, True, ("tool_use", None)),
        (Finish("tool_calls"), False, True, ("end_turn", None)),  # the calls could not be read
    ],
)
def test_the_end_has_a_reason(finish: Finish, has_calls: bool, is_cut_by_context: bool, expected: Any) -> None:
    ending = ending_of(finish, has_calls=has_calls, is_cut_by_context=is_cut_by_context)

    assert (ending["stop_reason"], ending["stop_sequence"]) == expected


def test_an_event_is_named_twice() -> None:
    assert server_sent({"type": "ping"}) == b'event: ping\ndata: {"type":"ping"}\n\n'


def test_integers_of_any_length_are_told() -> None:
    blocks, events = told([ToolCall("add", json.dumps({"a": 2**70}))])

    assert json.loads(encode_message({"content": blocks}))["content"][0]["input"] == {"a": 2**70}
    assert plain(rebuilt([json.loads(server_sent(event).split(b"data: ")[1]) for event in events])) == plain(blocks)
