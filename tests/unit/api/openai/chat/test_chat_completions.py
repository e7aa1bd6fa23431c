from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from support.api.users import MODEL
from support.chat import CALL, CONTEXT, WEATHER, tokens_of, written
from support.openai_answers import answer_of, chunks_of, refusal_of
from support.served import Served

MESSAGES = [{"role": "user", "content": "Hi"}]


def body(**more: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": MESSAGES, **more}


async def test_the_answer_is_a_chat_completion(
    served: Served, http: httpx.AsyncClient, models: dict[str, Path]
) -> None:
    served.backend.sequences = written(models[MODEL], "Hello.")
    answer = answer_of(await http.post("chat/completions", json=body()))

    assert (answer["object"], answer["model"], answer["id"][:9]) == ("chat.completion", MODEL, "chatcmpl-")
    [choice] = answer["choices"]
    assert choice["message"] == {"role": "assistant", "content": "Hello.", "refusal": None}
    assert (choice["index"], choice["finish_reason"], choice["logprobs"]) == (0, "stop", None)
    usage = answer["usage"]
    assert usage["completion_tokens"] == len(tokens_of(models[MODEL], "Hello."))
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]


async def test_the_hosted_path_answers_the_same(
    served: Served, models: dict[str, Path], http: httpx.AsyncClient
) -> None:
    served.backend.sequences = written(models[MODEL], "Hello.")
    answer = answer_of(await http.post("http://localhost/oai/api/v1/chat/completions", json=body()))

    assert answer["choices"][0]["message"]["content"] == "Hello."


async def test_a_stream_adds_up_to_the_answer(served: Served, http: httpx.AsyncClient, models: dict[str, Path]) -> None:
    served.backend.sequences = written(models[MODEL], "One answer.", "Another one.")
    asked = body(stream=True, n=2, stream_options={"include_usage": True}, return_token_ids=True, logprobs=True)
    *chunks, last = chunks_of(await http.post("chat/completions", json=asked))

    assert last["choices"] == []
    assert {chunk["id"] for chunk in chunks} == {last["id"]}
    assert all(chunk["usage"] is None for chunk in chunks)
    for number, text in enumerate(("One answer.", "Another one.")):
        parts = [each for chunk in chunks for each in chunk["choices"] if each["index"] == number]
        assert parts[0]["delta"]["role"] == "assistant"
        assert "".join(part["delta"].get("content") or "" for part in parts) == text
        tokens = tokens_of(models[MODEL], text)
        assert [token for part in parts for token in part.get("token_ids", [])] == tokens
        shown = [each for part in parts if part["logprobs"] for each in part["logprobs"]["content"]]
        assert bytes(byte for each in shown for byte in each["bytes"]).decode() == text
        assert [part["finish_reason"] for part in parts if part["finish_reason"]] == ["stop"]
    assert last["usage"]["completion_tokens"] == sum(
        len(tokens_of(models[MODEL], t)) for t in ("One answer.", "Another one.")
    )


async def test_calls_of_tools_are_named_alike_in_both_ways(
    served: Served, http: httpx.AsyncClient, models: dict[str, Path]
) -> None:
    served.backend.sequences = written(models["helper"], f"{CALL}\n{CALL}")
    asked = body(model="helper", tools=[WEATHER])
    answer = answer_of(await http.post("chat/completions", json=asked))
    chunks = chunks_of(await http.post("chat/completions", json={**asked, "stream": True}))

    [choice] = answer["choices"]
    assert (choice["finish_reason"], choice["message"]["content"]) == ("tool_calls", None)
    functions = [call["function"] for call in choice["message"]["tool_calls"]]
    assert functions == [{"name": "weather", "arguments": '{"city": "Oslo"}'}] * 2
    told = [call for chunk in chunks for call in chunk["choices"][0]["delta"].get("tool_calls", [])]
    assert [call["index"] for call in told] == [0, 1]
    assert [call["function"] for call in told] == functions
    assert len({call["id"] for call in told}) == 2


async def test_the_template_gets_tools_calls_and_results(
    served: Served, http: httpx.AsyncClient, models: dict[str, Path]
) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}}
    messages = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Will it "}, {"type": "text", "text": "rain?"}]},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "sunny"},
    ]
    served.backend.sequences = written(models["helper"], "No.")
    asked = {"model": "helper", "messages": messages, "tools": [WEATHER], "return_token_ids": True}
    answer = answer_of(await http.post("chat/completions", json=asked))

    decoded = await served.app.state.chat.tokenizers.decode(models["helper"], answer["prompt_token_ids"], singles=[])
    prompt = "".join(decoded.pieces)
    for part in (
        "Be brief.",
        "Will it rain?",
        '"name": "weather"',
        CALL,
        "sunny",
        '"description": "The weather in a city."',
    ):
        assert part in prompt


async def test_logprobs_have_their_alternatives(served: Served, http: httpx.AsyncClient) -> None:
    answer = answer_of(await http.post("chat/completions", json=body(logprobs=True)))
    shown = answer["choices"][0]["logprobs"]["content"]

    assert [each["logprob"] for each in shown] == [0.0, -0.25, -0.5]
    assert all(each["top_logprobs"] == [] for each in shown)


@pytest.mark.parametrize(
    ("wrong", "param"),
    [
        ({"temprature": 1}, "temprature"),
        ({"messages": []}, "messages"),
        ({"messages": None}, "messages"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "king", "content": ""}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": "", "mood": "bad"}]}, "messages[0].mood"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0].type"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].tool_call_id"),
        ({"model": 3}, "model"),
        ({"n": 0}, "n"),
        ({"n": 129}, "n"),
        ({"stop": [3]}, "stop"),
        ({"stop": ""}, "stop"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": -1}, "temperature"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"max_tokens": 3, "max_completion_tokens": 4}, "max_tokens"),
        ({"frequency_penalty": 0.5}, "frequency_penalty"),
        ({"logit_bias": {"1": 2}}, "logit_bias"),
        ({"reasoning_effort": "high"}, "reasoning_effort"),
        ({"functions": [{}]}, "functions"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [WEATHER, WEATHER]}, "tools[1].function.name"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [WEATHER], "tool_choice": {"type": "function", "function": {"name": "x"}}}, "tool_choice"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"metadata": {"a": 1}}, "metadata"),
        ({"chat_template_kwargs": []}, "chat_template_kwargs"),
        ({"service_tier": "flex"}, "service_tier"),
    ],
)
async def test_what_is_wrong_is_refused_by_name(http: httpx.AsyncClient, wrong: dict[str, Any], param: str) -> None:
    assert refusal_of(await http.post("chat/completions", json=body(**wrong)))["param"] == param


async def test_what_asks_for_nothing_is_let_pass(served: Served, http: httpx.AsyncClient) -> None:
    neutral = {
        "frequency_penalty": 0,
        "presence_penalty": 0.0,
        "logit_bias": {},
        "response_format": {"type": "text"},
        "user": "me",
        "seed": None,
        "tools": [],
        "service_tier": "auto",
        "store": False,
        "parallel_tool_calls": True,
        "modalities": ["text"],
    }
    answer_of(await http.post("chat/completions", json=body(**neutral)))


async def test_errors_that_clients_act_on_have_the_codes_of_openai(http: httpx.AsyncClient) -> None:
    missing = refusal_of(await http.post("chat/completions", json=body(model="gpt-9")), 404)
    long = refusal_of(await http.post("completions", json={"model": MODEL, "prompt": [5] * CONTEXT}))
    http.headers["Authorization"] = "Bearer tml-x"
    stranger = refusal_of(await http.post("chat/completions", json=body()), 401)

    assert "no model 'gpt-9'" in missing["message"]
    assert (missing["type"], missing["code"]) == ("invalid_request_error", "model_not_found")
    assert (long["type"], long["code"]) == ("invalid_request_error", "context_length_exceeded")
    # The words by which LiteLLM and Claude Code know it.
    assert long["message"].startswith(f"prompt is too long: {CONTEXT} tokens > {CONTEXT} maximum")
    assert f"This model's maximum context length is {CONTEXT}" in long["message"]
    assert (stranger["type"], stranger["code"]) == ("authentication_error", "invalid_api_key")


async def test_messages_of_litellm_come_back_as_it_gave_them(served: Served, http: httpx.AsyncClient) -> None:
    given = {"role": "assistant", "content": "Hello.", "function_call": None, "tool_calls": None}
    messages = [*MESSAGES, {**given, "provider_specific_fields": {"refusal": None}}, *MESSAGES]

    answer_of(await http.post("chat/completions", json=body(messages=messages)))


async def test_a_strict_tool_is_held_to_its_schema_and_the_prompt_is_the_same(
    served: Served, http: httpx.AsyncClient
) -> None:
    served.app.state.chat.can_constrain = True
    strict = {**WEATHER, "function": {**WEATHER["function"], "strict": True}}  # type: ignore[dict-item]
    for tool in (WEATHER, strict):
        await http.post("chat/completions", json=body(model="helper", tools=[tool]))

    plain, held = (json.loads(told) for call, _, told in served.backend.calls if call == "sample")
    assert "constraint" not in plain
    assert held["constraint"]["mark"] == "<tool_call>"
    assert held["prompt"] == plain["prompt"]

    served.app.state.chat.can_constrain = False
    refused = refusal_of(await http.post("chat/completions", json=body(model="helper", tools=[strict])))
    assert refused["param"] == "tools"
    assert "'weather' cannot be strict here" in refused["message"]


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'"a"', b"null", b"\xff"])
async def test_a_body_that_is_no_object_is_refused(http: httpx.AsyncClient, content: bytes) -> None:
    refusal_of(await http.post("chat/completions", content=content))


async def test_very_many_messages_are_refused(http: httpx.AsyncClient) -> None:
    message = {"role": "user", "content": "x"}

    long = await http.post("chat/completions", json=body(messages=[message] * 40_000))
    assert refusal_of(long)["code"] == "context_length_exceeded"
    longer = await http.post("chat/completions", json=body(messages=[message] * 100_000))
    assert "100000 fields" in refusal_of(longer, 413)["message"]


async def test_a_schema_that_is_nested_very_deep_is_refused(http: httpx.AsyncClient) -> None:
    schema: dict[str, Any] = {}
    for _ in range(300):
        schema = {"properties": {"a": schema}}
    tool = {"type": "function", "function": {"name": "deep", "parameters": schema}}

    assert refusal_of(await http.post("chat/completions", json=body(tools=[tool])))["param"] == "tools"


async def test_a_huge_schema_does_not_fit(http: httpx.AsyncClient) -> None:
    schema = {"properties": {f"field_{number}": {"type": "string"} for number in range(20_000)}}
    tool = {"type": "function", "function": {"name": "wide", "parameters": schema}}

    refusal_of(await http.post("chat/completions", json=body(model="helper", tools=[tool])))
