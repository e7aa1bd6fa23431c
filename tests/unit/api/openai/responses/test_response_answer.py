from __future__ import annotations

from typing import Any

import pytest

from chockstone.api.chat.generation import Delta, Finish, SampledText
from chockstone.api.chat.request_fields import RequestFields
from chockstone.api.chat.tool_calls import ToolCall
from chockstone.api.openai.answer_head import AnswerHead
from chockstone.api.openai.responses.response_answer import ResponseAnswer
from chockstone.api.openai.responses.response_request import read_response_request
from chockstone.wire.failures import ServerFailure
from support.chat import CALL, generated

CALLED = ToolCall("weather", "{}")


async def answer_of(text: str = "x", **more: Any) -> ResponseAnswer:
    request = read_response_request(RequestFields({"model": "tiny", "input": "Hi", **more}))
    return ResponseAnswer(AnswerHead("resp_1", "tiny", 0, None), request, await generated(text, tool_format="hermes"))


async def items_of(*deltas: Delta) -> list[dict[str, Any]]:
    answer = await answer_of()
    events = [event for delta in deltas for event in answer.events(delta)]
    items: list[dict[str, Any]] = answer.end()["response"]["output"]
    assert [event["item"] for event in events if event["type"] == "response.output_item.done"] == items
    return items


@pytest.mark.parametrize(
    ("parts", "kinds"),
    [
        (["a", "b"], ["message"]),
        (["a", CALLED, "b"], ["message", "function_call", "message"]),
        (["\n", CALLED, "\n", CALLED, "\n"], ["function_call", "function_call"]),
        ([], ["message"]),
    ],
)
async def test_parts_become_items(parts: list[Any], kinds: list[str]) -> None:
    deltas = [*(Delta(0, (part,), ()) for part in parts), Delta(0, (), (), Finish("stop"))]

    assert [item["type"] for item in await items_of(*deltas)] == kinds


async def test_blank_text_is_kept_once_more_follows() -> None:
    [item] = await items_of(Delta(0, ("\n",), ()), Delta(0, ("a",), ()), Delta(0, (), (), Finish("stop")))

    assert item["content"][0]["text"] == "\na"


async def test_each_token_has_its_logprob_once() -> None:
    answer = await answer_of(include=["message.output_text.logprobs"])
    tokens = tuple(SampledText(number, bytes([97 + number]), -float(number)) for number in range(3))
    for delta in (Delta(0, (), tokens[:1]), Delta(0, ("ab",), tokens[1:2]), Delta(0, (), tokens[2:], Finish("stop"))):
        list(answer.events(delta))

    [item] = answer.end()["response"]["output"]
    assert [each["logprob"] for each in item["content"][0]["logprobs"]] == [0, -1, -2]


async def test_a_failure_names_what_went_wrong() -> None:
    event = (await answer_of()).failed(ServerFailure("the disk is full"))

    assert (event["type"], event["response"]["status"]) == ("response.failed", "failed")
    assert event["response"]["error"] == {"code": "server_error", "message": "the disk is full"}


async def test_the_whole_answer_has_the_items() -> None:
    whole = (await answer_of(f"Look. {CALL}")).whole()

    assert [item["type"] for item in whole["output"]] == ["message", "function_call"]
    assert whole["usage"]["input_tokens"] == 3
