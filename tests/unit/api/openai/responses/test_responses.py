from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from support.api.users import MODEL
from support.chat import CALL, WEATHER, written
from support.openai_answers import answer_of, events_of, refusal_of
from support.served import Served

TOOL = {"type": "function", **WEATHER["function"]}


def body(**more: Any) -> dict[str, Any]:
    return {"model": MODEL, "input": "Hi", **more}


async def test_the_answer_is_a_response(served: Served, http: httpx.AsyncClient, models: dict[str, Path]) -> None:
    served.backend.sequences = written(models[MODEL], "Hello.")
    answer = answer_of(await http.post("responses", json=body(instructions="Be brief.", metadata={"a": "b"})))

    assert (answer["object"], answer["status"], answer["id"][:5]) == ("response", "completed", "resp_")
    [item] = answer["output"]
    assert (item["type"], item["role"], item["status"]) == ("message", "assistant", "completed")
    assert [part["text"] for part in item["content"]] == ["Hello."]
    assert answer["metadata"] == {"a": "b"}
    assert answer["usage"]["total_tokens"] == answer["usage"]["input_tokens"] + answer["usage"]["output_tokens"]


async def test_an_answer_that_is_cut_is_incomplete(
    served: Served, http: httpx.AsyncClient, models: dict[str, Path]
) -> None:
    served.backend.sequences = written(models[MODEL], "Hel", stop_reason="length")
    answer = answer_of(await http.post("responses", json=body()))
    events = events_of(await http.post("responses", json=body(stream=True)))

    assert (answer["status"], answer["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert events[-1]["type"] == "response.incomplete"


async def test_a_stream_ends_with_the_whole_answer(
    served: Served, http: httpx.AsyncClient, models: dict[str, Path]
) -> None:
    served.backend.sequences = written(models["helper"], f"Let me look. {CALL}\n{CALL}\n")
    include = ["message.output_text.logprobs"]
    asked = body(model="helper", tools=[TOOL], include=include)
    answer = answer_of(await http.post("responses", json=asked))
    events = events_of(await http.post("responses", json={**asked, "stream": True}))

    kinds = [event["type"] for event in events]
    assert kinds[:4] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]
    assert kinds[-1] == "response.completed"
    deltas = [event for event in events if event["type"] == "response.output_text.delta"]
    assert "".join(event["delta"] for event in deltas).strip() == "Let me look."
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert events[-1]["response"]["output"] == done
    assert [item["type"] for item in done] == ["message", "function_call", "function_call"]
    assert [item["type"] for item in answer["output"]] == ["message", "function_call", "function_call"]
    assert {item["arguments"] for item in done[1:]} == {'{"city": "Oslo"}'}
    assert len({item["call_id"] for item in done[1:]}) == 2
    assert answer["output"][0]["content"][0]["text"] == done[0]["content"][0]["text"]
    assert answer["output"][0]["content"][0]["logprobs"]


async def test_items_become_the_messages_of_the_template(
    served: Served, http: httpx.AsyncClient, models: dict[str, Path]
) -> None:
    items = [
        {"role": "user", "content": [{"type": "input_text", "text": "Will it rain?"}]},
        {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "I look.", "annotations": []}],
        },
        {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": '{"city": "Oslo"}'},
        {"type": "function_call_output", "call_id": "c1", "output": "sunny"},
    ]
    chat = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Will it rain?"},
        {
            "role": "assistant",
            "content": "I look.",
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}}
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "sunny"},
    ]
    asked = {"model": "helper", "input": items, "instructions": "Be brief.", "tools": [TOOL]}
    answer = answer_of(await http.post("responses", json=asked))
    other = answer_of(
        await http.post("chat/completions", json={"model": "helper", "messages": chat, "tools": [WEATHER]})
    )

    bodies = [told for call, _, told in served.backend.calls if call == "sample"]
    assert bodies[0] == bodies[1]
    assert answer["usage"]["input_tokens"] == other["usage"]["prompt_tokens"]


@pytest.mark.parametrize(
    ("wrong", "param"),
    [
        ({"input": None}, "input"),
        ({"input": []}, "input"),
        ({"input": [3]}, "input[0]"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0].type"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"store": 3}, "store"),
        ({"include": ["file_search_call.results"]}, "include"),
        ({"text": {"verbosity": "high"}}, "text.verbosity"),
        ({"tools": [WEATHER]}, "tools[0].name"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"background": True}, "background"),
        ({"reasoning": {"effort": "high"}}, "reasoning.effort"),
        ({"unknown": 1}, "unknown"),
    ],
)
async def test_what_is_wrong_is_refused_by_name(http: httpx.AsyncClient, wrong: dict[str, Any], param: str) -> None:
    assert refusal_of(await http.post("responses", json=body(**wrong)))["param"] == param


async def test_what_clients_ask_of_reasoning_is_let_pass(http: httpx.AsyncClient) -> None:
    """inspect-ai and LiteLLM ask always; there is none."""
    asked = body(include=["reasoning.encrypted_content"], reasoning={"summary": "auto"})
    answer = answer_of(await http.post("responses", json=asked))

    assert [item["type"] for item in answer["output"]] == ["message"]
    assert answer["output"][0]["content"][0]["logprobs"] == []


async def test_tools_say_whether_they_are_strict(served: Served, http: httpx.AsyncClient) -> None:
    served.app.state.chat.can_constrain = True
    function = WEATHER["function"]
    assert isinstance(function, dict)
    tools = [{"type": "function", **function, "strict": True}, {"type": "function", **function, "name": "other"}]
    answer = answer_of(await http.post("responses", json=body(model="helper", tools=tools)))

    assert [(tool["name"], tool["strict"]) for tool in answer["tools"]] == [("weather", True), ("other", False)]
