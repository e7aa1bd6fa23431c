"""The unmodified SDK of OpenAI, held against the SDK of Tinker on the same server."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
import tinker
from openai import AsyncOpenAI, OpenAI
from tinker import types

from sdk.making import MODEL, create
from support.live import LiveServer

KEYS = {"ann": "tml-of-ann-01234", "bob": "tml-of-bob-01234"}
MESSAGES: Any = [{"role": "user", "content": "What holds a fall?"}]
LONG: dict[str, Any] = {"max_tokens": 300, "extra_body": {"return_token_ids": True}}
TOOL: Any = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather in a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}

CITIES = {
    "type": "object",
    "properties": {"city": {"enum": ["Oslo", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def keyed(models: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    flags = [f"--key={user}={key}" for user, key in KEYS.items()]
    with LiveServer(models, tmp_path_factory.mktemp("openai"), *flags, key=KEYS["ann"]) as server:
        yield server


@pytest.fixture(scope="module")
def client(keyed: LiveServer) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{keyed.url}/v1", api_key=KEYS["ann"]) as client:
        yield client


@pytest.fixture(scope="module")
def service(keyed: LiveServer) -> Iterator[tinker.ServiceClient]:
    service = tinker.ServiceClient(base_url=keyed.url, api_key=KEYS["ann"])
    yield service
    service.close("success").result()


@pytest.fixture(scope="module")
def checkpoint(service: tinker.ServiceClient) -> str:
    path: str = create(service).save_weights_for_sampler("talking").result().path
    return path


def ask(client: OpenAI, **more: Any) -> Any:
    return client.chat.completions.create(**{"model": MODEL, "messages": MESSAGES, "max_tokens": 24, **more})


def pieces(stream: Any) -> list[Any]:
    return [choice for chunk in stream for choice in chunk.choices]


def text_of(choices: list[Any]) -> str:
    return "".join(choice.delta.content or "" for choice in choices)


@pytest.mark.parametrize("name", ["base", "checkpoint", "alias", "latest"])
def test_tokens_and_logprobs_are_exactly_those_of_tinker(
    client: OpenAI, keyed: LiveServer, service: tinker.ServiceClient, checkpoint: str, name: str
) -> None:
    with keyed.http() as http:
        http.put("aliases/prod", json={"target": checkpoint}).raise_for_status()
    latest = checkpoint.replace("/talking", "/latest")
    model = {"base": MODEL, "checkpoint": checkpoint, "alias": "prod", "latest": latest}[name]
    answer = ask(client, model=model, seed=5, logprobs=True, extra_body={"return_token_ids": True})

    [choice] = answer.choices
    options = {"base_model": MODEL} if name == "base" else {"model_path": checkpoint}
    sampler = service.create_sampling_client(**options)
    params = types.SamplingParams(max_tokens=24, temperature=1.0, seed=5)
    [same] = sampler.sample(types.ModelInput.from_ints(answer.prompt_token_ids), 1, params).result().sequences
    assert choice.token_ids == same.tokens
    assert [each.logprob for each in choice.logprobs.content] == same.logprobs
    assert (answer.model, answer.usage.completion_tokens) == (model, len(same.tokens))


def test_a_stream_adds_up_to_the_answer(client: OpenAI) -> None:
    whole = ask(client, seed=6, n=3, logprobs=True, top_logprobs=2)
    choices = pieces(ask(client, seed=6, n=3, logprobs=True, stream=True))

    for number, expected in enumerate(whole.choices):
        found = [each for each in choices if each.index == number]
        assert text_of(found) == expected.message.content
        shown = [each for part in found if part.logprobs for each in part.logprobs.content]
        assert [each.logprob for each in shown] == [each.logprob for each in expected.logprobs.content]
        assert found[-1].finish_reason == expected.finish_reason
    best = [each.top_logprobs for each in whole.choices[0].logprobs.content]
    assert all(len(each) == 2 and each[0].logprob >= each[1].logprob for each in best)


def test_text_ends_before_a_stop_string_across_tokens(client: OpenAI) -> None:
    for seed in range(7, 50):
        whole = ask(client, seed=seed).choices[0].message.content
        if found := re.search(r"(?<=.)[ -~]{3}", whole):  # text that is whole characters
            break
    assert found
    stop, expected = found[0], whole[: whole.index(found[0])]

    [choice] = ask(client, seed=seed, stop=[stop, "never written"]).choices
    assert (choice.message.content, choice.finish_reason) == (expected, "stop")
    assert text_of(pieces(ask(client, seed=seed, stop=stop, stream=True))) == expected


def test_completions_continue_text_and_tokens(client: OpenAI) -> None:
    texts = client.completions.create(model=MODEL, prompt=["a", "b"], max_tokens=8, seed=1, logprobs=1)
    stream = client.completions.create(model=MODEL, prompt="b", max_tokens=8, seed=1, stream=True)
    tokens = client.completions.create(model=MODEL, prompt=[5, 6, 7], max_tokens=1)

    assert [choice.index for choice in texts.choices] == [0, 1]
    assert "".join(chunk.choices[0].text for chunk in stream) == texts.choices[1].text
    assert len(texts.choices[0].logprobs.tokens) <= 8
    assert (tokens.usage.prompt_tokens, tokens.choices[0].finish_reason) in {(3, "length"), (3, "stop")}


def test_responses_answer_and_stream(client: OpenAI, checkpoint: str) -> None:
    asked: dict[str, Any] = {"model": checkpoint, "input": "Hi", "max_output_tokens": 12, "extra_body": {"seed": 4}}
    answer = client.responses.create(**asked, instructions="Be brief.", metadata={"run": "1"})
    events = list(client.responses.create(**asked, instructions="Be brief.", stream=True))

    assert answer.output_text
    assert events[0].type == "response.created"
    assert events[-1].response.output_text == answer.output_text
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(deltas) == answer.output_text


def test_tools_are_offered(client: OpenAI) -> None:
    plain, offered = ask(client), ask(client, tools=[TOOL])
    again = ask(
        client,
        tools=[TOOL],
        messages=[
            *MESSAGES,
            {
                "role": "assistant",
                "tool_calls": [
                    {"id": "c", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}}
                ],
            },
            {"role": "tool", "tool_call_id": "c", "content": "sunny"},
        ],
    )

    assert plain.usage.prompt_tokens < offered.usage.prompt_tokens < again.usage.prompt_tokens


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "weather"}}])
def test_a_tool_that_must_be_called_is_called_even_by_a_random_model(client: OpenAI, choice: Any) -> None:
    function = {**TOOL["function"], "parameters": CITIES}  # short: a random model writes long texts
    tools = [{"type": "function", "function": function}]
    asked: dict[str, Any] = {"tools": tools, "tool_choice": choice, "max_tokens": 200, "seed": 3}
    [answer] = ask(client, **asked).choices
    streamed = pieces(ask(client, **asked, stream=True))

    [call] = answer.message.tool_calls
    assert (call.function.name, answer.finish_reason) == ("weather", "tool_calls")
    assert json.loads(call.function.arguments)["city"] in ("Oslo", "Rome")
    told = [each for choice in streamed for each in choice.delta.tool_calls or []]
    assert [each.function.arguments for each in told] == [call.function.arguments]


def test_an_answer_matches_its_schema(client: OpenAI) -> None:
    schema = {
        "type": "object",
        "properties": {"colour": {"enum": ["red", "green"]}, "count": {"type": "integer", "maximum": 9}},
        "required": ["colour", "count"],
        "additionalProperties": False,
    }
    wanted: Any = {"type": "json_schema", "json_schema": {"name": "paint", "schema": schema, "strict": True}}
    [chat] = ask(client, response_format=wanted, max_tokens=200, temperature=0).choices
    text: Any = {"format": {"type": "json_schema", "name": "paint", "schema": schema}}
    response = client.responses.create(model=MODEL, input="Hi", text=text, max_output_tokens=200, temperature=0)

    for written in (chat.message.content, response.output_text):
        assert set(json.loads(written)) == {"colour", "count"}
        assert json.loads(written)["colour"] in ("red", "green")
    with pytest.raises(openai.BadRequestError, match="schema"):
        ask(client, response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "king"}}})


async def test_many_streams_at_once_are_each_their_own(keyed: LiveServer) -> None:
    async with AsyncOpenAI(base_url=f"{keyed.url}/oai/api/v1", api_key=KEYS["ann"]) as client:

        async def talk(seed: int, stream: bool) -> str:
            asked: dict[str, Any] = {"model": MODEL, "messages": MESSAGES, "max_tokens": 24, "seed": seed}
            if not stream:
                return (await client.chat.completions.create(**asked)).choices[0].message.content or ""
            chunks = await client.chat.completions.create(**asked, stream=True)
            return "".join([chunk.choices[0].delta.content or "" async for chunk in chunks])

        streamed = await asyncio.gather(*(talk(seed, True) for seed in range(24)))
        whole = await asyncio.gather(*(talk(seed, False) for seed in range(24)))

    assert streamed == whole
    assert len(set(whole)) == 24


def test_errors_have_the_classes_of_the_sdk(client: OpenAI, keyed: LiveServer, checkpoint: str) -> None:
    with pytest.raises(openai.BadRequestError) as wrong:
        ask(client, frequency_penalty=1)
    assert wrong.value.param == "frequency_penalty"
    with pytest.raises(openai.NotFoundError):
        ask(client, model="gpt-9")
    with pytest.raises(openai.BadRequestError, match="context"):
        client.completions.create(model=MODEL, prompt=[1] * 100_000)
    with OpenAI(base_url=f"{keyed.url}/v1", api_key="tml-wrong") as stranger, pytest.raises(openai.AuthenticationError):
        ask(stranger)
    with OpenAI(base_url=f"{keyed.url}/v1", api_key=KEYS["bob"]) as bob:
        assert ask(bob).choices
        with pytest.raises(openai.NotFoundError, match="not yours or not there"):
            ask(bob, model=checkpoint)
        assert checkpoint not in [model.id for model in bob.models.list()]
    assert checkpoint in [model.id for model in client.models.list()]
    assert client.models.retrieve(checkpoint).id == checkpoint


def test_a_client_that_leaves_frees_its_place(client: OpenAI, keyed: LiveServer) -> None:
    with keyed.http() as http:
        before = http.get("server").json()["queue"]["samples"]
        stream = ask(client, stream=True, stop=None, n=8, **LONG)
        next(iter(stream))
        assert http.get("server").json()["queue"]["samples"] == before + 1

        stream.close()

        deadline = time.monotonic() + 30
        while http.get("server").json()["queue"]["samples"] != before:
            assert time.monotonic() < deadline, "the sample is still under way"


def test_a_stream_continues_when_the_worker_is_killed(client: OpenAI, keyed: LiveServer) -> None:
    for seed in range(20):
        [undisturbed] = ask(client, seed=seed, **LONG).choices
        if len(undisturbed.token_ids) > 100:
            break
    stream = iter(ask(client, seed=seed, stream=True, logprobs=True, **LONG))
    chunks = [next(stream)]
    for pid in keyed.workers():
        os.kill(pid, signal.SIGKILL)
    chunks += list(stream)

    choices = [choice for chunk in chunks for choice in chunk.choices]
    assert [token for each in choices for token in getattr(each, "token_ids", [])] == undisturbed.token_ids
    assert text_of(choices) == undisturbed.message.content
    assert choices[-1].finish_reason == undisturbed.finish_reason


def test_strict_calls_match_their_schema_even_of_a_random_model(client: OpenAI) -> None:
    """It begins a call once in some hundred tokens, and what it writes in between is its own."""
    strict = {"type": "function", "function": {**TOOL["function"], "parameters": CITIES, "strict": True}}
    asked: dict[str, Any] = {"tools": [strict], "n": 16, "max_tokens": 250, "seed": 1}
    choices = ask(client, **asked).choices
    streamed = pieces(ask(client, **asked, stream=True))

    calls = [call for choice in choices for call in choice.message.tool_calls or []]
    assert calls, "one of some thousand tokens begins a call"
    for call in calls:
        assert call.function.name == "weather"
        assert json.loads(call.function.arguments)["city"] in ("Oslo", "Rome")
    assert any(choice.message.content for choice in choices)
    told = [each.function.arguments for choice in streamed for each in choice.delta.tool_calls or []]
    assert sorted(told) == sorted(call.function.arguments for call in calls)


def test_stored_answers_are_shown_and_deleted(client: OpenAI, keyed: LiveServer) -> None:
    chat = ask(client, store=True, metadata={"team": "a"})
    response = client.responses.create(model=MODEL, input="Hi", max_output_tokens=8, store=True)

    assert client.chat.completions.retrieve(chat.id).choices == chat.choices
    assert client.responses.retrieve(response.id).output == response.output
    with OpenAI(base_url=f"{keyed.url}/v1", api_key=KEYS["bob"]) as bob:
        for steal in (bob.chat.completions.retrieve, bob.chat.completions.delete):
            with pytest.raises(openai.NotFoundError):
                steal(chat.id)
        with pytest.raises(openai.NotFoundError):
            bob.responses.delete(response.id)
    assert client.chat.completions.delete(chat.id).deleted
    client.responses.delete(response.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(response.id)


def test_users_share_no_prefix_cache(client: OpenAI, keyed: LiveServer) -> None:
    """The count of cached tokens of an answer does not tell what another user has asked."""
    secret: Any = [{"role": "user", "content": "The rope of Ann is red. " * 40}]
    first, again = ask(client, messages=secret), ask(client, messages=secret)
    with OpenAI(base_url=f"{keyed.url}/v1", api_key=KEYS["bob"]) as bob:
        other = ask(bob, messages=secret)

    assert [each.usage.prompt_tokens_details.cached_tokens for each in (first, other)] == [0, 0]
    assert again.usage.prompt_tokens_details.cached_tokens > 0


@pytest.mark.parametrize(
    "wrong",
    [
        {"messages": [{"role": "user", "content": "x"}] * 100_000},
        {"messages": {"role": "user"}},
        {"messages": [[]]},
        {"tools": [{**TOOL, "function": {**TOOL["function"], "parameters": {"x" * 2_000_000: 1}}}]},
        {"stop": ["\ud83d"]},
        {"seed": 2**64},
        {"n": "many"},
        {"temperature": float("1e308")},
        {"model": "x" * 1_000_000},
        {"chat_template_kwargs": {"messages": []}, "messages": []},
    ],
)
def test_hostile_requests_are_refused(keyed: LiveServer, wrong: dict[str, Any]) -> None:
    body = json.dumps({"model": MODEL, "messages": MESSAGES, "max_tokens": 1, **wrong})
    with keyed.http() as http:
        answer = http.post(
            f"{keyed.url}/v1/chat/completions", content=body, headers={"Content-Type": "application/json"}
        )

    assert 400 <= answer.status_code < 500 or "temperature" in wrong, answer.text[:300]
    assert answer.status_code not in (408, 409, 429)


def schemas() -> dict[str, Any]:
    """That no grammar can be made of, and that are slow to follow."""
    doubled = {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(40)}
    nested: Any = {"type": "object"}
    for _ in range(8):
        nested = {"oneOf": [nested, nested]}
    patterns = ["^(.{0,1000}a.{0,1000}){0,1000}$", "(a|b)*a(a|b){60}", "((((a{1,100}){1,100}){1,100}){1,100}){1,100}"]
    return {
        "a loop": {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
        "itself": {"allOf": [{"$ref": "#"}]},
        "doubled": {"$ref": "#/$defs/d0", "$defs": {**doubled, "d40": {"type": "object"}}},
        "nested": nested,
        "another host": {"$ref": "http://127.0.0.1:9/schema"},
        **{
            pattern: {"type": "object", "properties": {"a": {"type": "string", "pattern": pattern}}, "required": ["a"]}
            for pattern in patterns
        },
        "large": {"type": "object", "description": "x" * 7_000_000},
        "larger": {"type": "object", "description": "x" * 10_000_000},
    }


def test_hostile_schemas_fail_alone(client: OpenAI, keyed: LiveServer) -> None:
    workers = keyed.workers()
    bodies = []
    for schema in schemas().values():
        function = {"name": "f", "parameters": schema, "strict": True}
        asked: dict[str, Any] = {"model": MODEL, "messages": MESSAGES, "max_tokens": 60, "temperature": 0}
        tools = [{"type": "function", "function": function}]
        wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
        bodies += [json.dumps({**asked, "tools": tools, "tool_choice": choice}) for choice in ("auto", "required")]
        bodies.append(json.dumps({**asked, "response_format": wanted}))
    stream = iter(ask(client, stream=True, stop=None, n=8, **LONG))
    next(stream)

    with keyed.http() as http:
        headers = {"Content-Type": "application/json"}
        answers = [http.post(f"{keyed.url}/v1/chat/completions", content=body, headers=headers) for body in bodies]
        page = http.get(f"{keyed.url}/metrics").text

    assert {answer.status_code for answer in answers} <= {200, 400, 413}
    refused = [answer for answer in answers if answer.status_code != 200]
    assert len(refused) > len(answers) / 3
    assert all(10 < len(answer.json()["error"]["message"]) < 1000 for answer in refused)
    assert "\nchockstone_loop_held_total 0.0\n" in page, keyed.log()
    assert list(stream)
    assert keyed.workers() == workers
