"""The unmodified SDK against the routes, on loopback."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import anthropic
import httpx
import pytest

from chockstone.api.anthropic.answers import MessageAnswer
from chockstone.api.anthropic.messages import stream_events
from chockstone.api.chat.chat_service import ChatService
from chockstone.wire.failures import ServerFailure
from support.api.users import KEYS, MODEL, User
from support.chat import CALL, CONTEXT
from support.served import Served
from unit.api.anthropic.conftest import HELPER, Writes

HI: Any = [{"role": "user", "content": "Hi"}]
WEATHER: Any = {
    "name": "weather",
    "description": "The weather in a city.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}


def prompt_of(served: Served) -> dict[str, Any]:
    """What the worker was asked last."""
    found: dict[str, Any] = json.loads([body for word, _, body in served.backend.calls if word == "sample"][-1])
    return found


async def test_a_message_is_answered(client: anthropic.AsyncAnthropic, writes: Writes, served: Served) -> None:
    writes("Hello.")

    answer = await client.messages.create(model=MODEL, max_tokens=50, system="Be short.", messages=HI)

    assert [block.text for block in answer.content] == ["Hello."]
    assert (answer.role, answer.model, answer.type) == ("assistant", MODEL, "message")
    assert (answer.stop_reason, answer.stop_sequence) == ("end_turn", None)
    sent = prompt_of(served)
    [chunk] = sent["prompt"]["chunks"]
    assert answer.usage.input_tokens == len(chunk["tokens"])
    assert answer.usage.output_tokens == len(served.backend.sequences[0].tokens)
    assert sent["sampling_params"]["max_tokens"] == 50
    assert answer._request_id


async def test_a_stream_tells_the_same_message(client: anthropic.AsyncAnthropic, writes: Writes) -> None:
    writes(f"Let me see.\n{CALL}")
    asked: dict[str, Any] = {"model": HELPER, "max_tokens": 200, "messages": HI, "tools": [WEATHER]}

    whole = await client.messages.create(**asked)
    async with client.messages.stream(**asked) as stream:
        texts = [text async for text in stream.text_stream]
        told = await stream.get_final_message()

    assert "".join(texts) == "Let me see."
    assert [block.type for block in told.content] == ["text", "tool_use"]
    without_ids = [[block.model_dump(exclude={"id"}) for block in each.content] for each in (whole, told)]
    assert without_ids[0] == without_ids[1]
    assert (told.content[1].name, told.content[1].input) == ("weather", {"city": "Oslo"})
    assert told.stop_reason == whole.stop_reason == "tool_use"
    assert told.usage.model_dump() == whole.usage.model_dump()


async def test_a_tool_is_called_and_its_result_told(
    client: anthropic.AsyncAnthropic, writes: Writes, texts_of: Callable[[], str]
) -> None:
    writes(CALL)
    called = await client.messages.create(model=HELPER, max_tokens=200, messages=HI, tools=[WEATHER])
    [call] = called.content
    assert call.type == "tool_use"
    writes("It rains.")

    result = {"type": "tool_result", "tool_use_id": call.id, "content": "rain"}
    messages = [*HI, called.to_param(), {"role": "user", "content": [result]}]
    answer = await client.messages.create(model=HELPER, max_tokens=50, messages=messages, tools=[WEATHER])

    assert answer.content[0].text == "It rains."
    assert f"assistant<|end_header_id|>\n\n{CALL}<|eot_id|>" in texts_of()
    assert "tool<|end_header_id|>\n\nrain<|eot_id|>" in texts_of()


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "weather"}])
@pytest.mark.parametrize("can_constrain", [True, False])
async def test_a_tool_that_must_be_called_is_a_constraint_or_begun_for_the_model(
    served: Served, client: anthropic.AsyncAnthropic, writes: Writes, choice: Any, can_constrain: bool
) -> None:
    served.app.state.chat.can_constrain = can_constrain
    begun = '<tool_call>\n{"name": "' + ("" if choice["type"] == "any" else 'weather", "arguments": ')
    assert CALL.startswith(begun)
    writes(CALL if can_constrain else CALL.removeprefix(begun))

    answer = await client.messages.create(
        model=HELPER, max_tokens=200, messages=HI, tools=[WEATHER], tool_choice=choice
    )

    assert answer.stop_reason == "tool_use"
    assert [(block.type, block.input) for block in answer.content] == [("tool_use", {"city": "Oslo"})]


async def test_a_message_that_has_begun_goes_on(
    client: anthropic.AsyncAnthropic, writes: Writes, texts_of: Callable[[], str], ann: User
) -> None:
    writes(" warm.")
    await ann.http.put("aliases/prod", json={"target": HELPER, "store": True})
    messages = [*HI, {"role": "assistant", "content": "It is"}]

    answer = await client.messages.create(model="prod", max_tokens=50, messages=messages)
    counted = await client.messages.count_tokens(model=HELPER, messages=messages)

    assert [block.text for block in answer.content] == [" warm."]
    assert texts_of().endswith("assistant<|end_header_id|>\n\nIt is")
    assert counted.input_tokens == answer.usage.input_tokens
    assert (await ann.http.get(f"conversations/{answer.id}")).json()["messages"] == messages


async def test_a_format_and_strict_tools_are_constraints(
    client: anthropic.AsyncAnthropic, writes: Writes, served: Served
) -> None:
    served.app.state.chat.can_constrain = True
    writes("{}")
    schema = {"type": "object", "properties": {}}
    output: Any = {"format": {"type": "json_schema", "schema": schema}}
    await client.messages.create(model=MODEL, max_tokens=50, messages=HI, output_config=output)
    assert prompt_of(served)["constraint"] == {"json_schema": schema}

    tools: Any = [{**WEATHER, "strict": True}]
    await client.messages.create(model=HELPER, max_tokens=50, messages=HI, tools=tools)
    assert prompt_of(served)["constraint"]["mark"] == "<tool_call>"


async def test_one_call_is_enough_where_only_one_is_wanted(client: anthropic.AsyncAnthropic, writes: Writes) -> None:
    writes(f"{CALL}\n{CALL}")

    def ask(**choice: Any) -> Any:
        return client.messages.create(
            model=HELPER, max_tokens=200, messages=HI, tools=[WEATHER], tool_choice={"type": "auto", **choice}
        )

    assert len((await ask()).content) == 2
    assert len((await ask(disable_parallel_tool_use=True)).content) == 1


async def test_the_end_of_an_answer_has_a_reason(client: anthropic.AsyncAnthropic, writes: Writes) -> None:
    async def end(max_tokens: int, **more: Any) -> tuple[str | None, str | None, str]:
        answer = await client.messages.create(model=MODEL, max_tokens=max_tokens, messages=HI, **more)
        return answer.stop_reason, answer.stop_sequence, answer.content[0].text

    writes("One. Two.")
    assert await end(50) == ("end_turn", None, "One. Two.")
    assert await end(50, stop_sequences=["Two"]) == ("stop_sequence", "Two", "One. ")
    writes("One", stop_reason="length")
    assert (await end(1))[0] == "max_tokens"
    assert (await end(CONTEXT))[0] == "model_context_window_exceeded"


async def test_tokens_are_counted_as_they_are_used(client: anthropic.AsyncAnthropic, writes: Writes) -> None:
    writes("Hello.")

    counted = await client.messages.count_tokens(model=HELPER, messages=HI, tools=[WEATHER], system="Be short.")
    answer = await client.messages.create(model=HELPER, max_tokens=5, messages=HI, tools=[WEATHER], system="Be short.")

    assert counted.input_tokens == answer.usage.input_tokens


async def test_the_beta_resource_and_the_synchronous_client_do_the_same(
    client: anthropic.AsyncAnthropic, url: str, writes: Writes
) -> None:
    writes("Hello.")
    beta = await client.beta.messages.create(
        model=MODEL, max_tokens=5, messages=HI, betas=["interleaved-thinking-2025-05-14"]
    )

    def ask() -> tuple[str, str]:
        with anthropic.Anthropic(base_url=f"{url}/anthropic/api", auth_token=KEYS["ann"], max_retries=0) as made:
            whole = made.messages.create(model=MODEL, max_tokens=5, messages=HI)
            with made.messages.stream(model=MODEL, max_tokens=5, messages=HI) as stream:
                return whole.content[0].text, stream.get_final_text()

    assert beta.content[0].text == "Hello."
    assert await asyncio.to_thread(ask) == ("Hello.", "Hello.")


async def test_a_checkpoint_is_a_model_of_its_owner_only(
    client: anthropic.AsyncAnthropic, url: str, ann: User, writes: Writes
) -> None:
    path = await ann.save(await ann.run(), "a", kind="sampler_weights")
    writes("Hello.")

    assert (await client.messages.create(model=path, max_tokens=5, messages=HI)).model == path
    async with anthropic.AsyncAnthropic(base_url=f"{url}/anthropic", api_key=KEYS["bob"], max_retries=0) as bob:
        with pytest.raises(anthropic.NotFoundError) as refused:
            await bob.messages.create(model=path, max_tokens=5, messages=HI)

    assert refused.value.body["error"]["type"] == "not_found_error"
    assert refused.value.request_id == refused.value.body["request_id"]


@pytest.mark.parametrize(
    ("more", "error", "words"),
    [
        ({"model": "claude-x"}, anthropic.NotFoundError, "there is no model 'claude-x'"),
        ({"thinking": {"type": "enabled", "budget_tokens": 2000}}, anthropic.BadRequestError, "thinking"),
        ({"max_tokens": 0}, anthropic.BadRequestError, "max_tokens"),
        ({"tools": [WEATHER]}, anthropic.BadRequestError, "knows no tools"),
        ({"messages": [{"role": "user", "content": "Hi " * 2000}]}, anthropic.BadRequestError, "shorten the prompt"),
        ({"extra_headers": {"Authorization": "Bearer tml-x"}}, anthropic.AuthenticationError, "not known"),
    ],
)
@pytest.mark.parametrize("is_stream", [False, True])
async def test_refusals_are_the_sdks_own_errors(
    client: anthropic.AsyncAnthropic, more: dict[str, Any], error: type[Exception], words: str, is_stream: bool
) -> None:
    asked: dict[str, Any] = {"model": MODEL, "max_tokens": 5, "messages": HI, "stream": is_stream, **more}

    with pytest.raises(error, match=words):
        await client.messages.create(**asked)


async def test_a_failure_before_the_first_token_has_a_status(
    client: anthropic.AsyncAnthropic, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object, **__: object) -> None:
        raise ServerFailure("the worker has no memory left")

    monkeypatch.setattr(served.engine.sampling, "stream", fail)

    with pytest.raises(anthropic.InternalServerError, match="no memory left"):
        await client.messages.create(model=MODEL, max_tokens=5, messages=HI, stream=True)


class _Broken:
    """A generation that fails after its first delta."""

    prompt_tokens, cached_tokens, completion_tokens = (1, 2), None, 0

    def __init__(self, error: Exception) -> None:
        self._error = error

    def __aiter__(self) -> _Broken:
        return self

    async def __anext__(self) -> Any:
        raise self._error


async def test_a_failure_in_the_middle_of_a_stream_is_its_last_event() -> None:
    asked: Any = type("Asked", (), {"model": MODEL})()
    broken: Any = _Broken(ServerFailure("the worker is gone"))

    pieces = [piece async for piece in stream_events(MessageAnswer(asked, broken), broken)]

    assert b"event: message_start" in pieces[0]
    assert pieces[-1].startswith(b"event: error\n")
    assert b"the worker is gone" in pieces[-1]
    assert b"message_stop" not in b"".join(pieces)


async def test_a_silent_stream_pings(served: Served, url: str, writes: Writes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_events, "__kwdefaults__", {"ping_seconds": 0.01})
    writes("Hello.")
    served.backend.hold("token 2")
    body = {"model": MODEL, "max_tokens": 50, "messages": HI, "stream": True}
    pings = 0

    async with (
        httpx.AsyncClient(base_url=url, headers={"X-API-Key": KEYS["ann"]}, trust_env=False) as http,
        http.stream("POST", "/anthropic/v1/messages", json=body) as answer,
    ):
        async for line in answer.aiter_lines():
            pings += line == "event: ping"
            if pings == 3:
                served.backend.let_everything_go()
        assert line == ""

    assert pings >= 3


@pytest.mark.parametrize("is_stream", [True, False])
async def test_a_client_that_leaves_frees_its_place(served: Served, url: str, writes: Writes, is_stream: bool) -> None:
    writes("Hello.")
    served.backend.hold("token 2")
    body = {"model": MODEL, "max_tokens": 50, "messages": HI, "stream": is_stream}

    async with httpx.AsyncClient(base_url=url, headers={"X-API-Key": KEYS["ann"]}, trust_env=False) as http:
        asking = asyncio.create_task(http.post("/anthropic/v1/messages", json=body))
        async with asyncio.timeout(20):
            while "sample" not in served.backend.words():
                await asyncio.sleep(0.01)
            asking.cancel()
            while "cancel" not in served.backend.words():
                await asyncio.sleep(0.01)


async def test_tokens_are_not_counted_for_a_client_that_has_left(served: Served, url: str) -> None:
    chat: ChatService = served.app.state.chat
    turns = chat.tokenizers._turns
    await turns.take("bob")

    async with httpx.AsyncClient(base_url=url, headers={"X-API-Key": KEYS["ann"]}, trust_env=False) as http:
        body = {"model": MODEL, "messages": HI}
        asking = asyncio.create_task(http.post("/anthropic/v1/messages/count_tokens", json=body))
        async with asyncio.timeout(20):
            while turns.total < 2:
                await asyncio.sleep(0.01)
            asking.cancel()
            while turns.total > 1:
                await asyncio.sleep(0.01)
    turns.give_back("bob")


async def test_a_call_may_have_integers_of_any_length(client: anthropic.AsyncAnthropic, writes: Writes) -> None:
    writes(f'<tool_call>{{"name": "weather", "arguments": {{"city": {2**70}}}}}</tool_call>')

    answer = await client.messages.create(model=HELPER, max_tokens=90, messages=HI, tools=[WEATHER])

    [call] = answer.content
    assert call.type == "tool_use"
    assert call.input == {"city": 2**70}


async def test_hostile_bodies_are_refused_in_words(url: str) -> None:
    ask = {"model": MODEL, "max_tokens": 5}
    deep: Any = "x"
    for _ in range(900):
        deep = {"a": deep}
    bodies = [
        json.dumps({**ask, "messages": HI * 100_000}),
        json.dumps({**ask, "messages": [{"role": "user", "content": [{"type": "text", "text": "a"}] * 90_000}]}),
        json.dumps({**ask, "messages": HI, "tools": [{"name": "a", "input_schema": deep}]}),
        json.dumps({**ask, "messages": HI, "tools": [{"name": f"t{n}", "input_schema": {}} for n in range(20_000)]}),
        json.dumps(
            {**ask, "messages": HI, "tools": [{"name": "a", "input_schema": {f"p{n}": {} for n in range(250_000)}}]}
        ),
        '{"a":' * 2000 + "1" + "}" * 2000,
        "[" * 100_000,
        json.dumps({**ask, "messages": HI})[:-3],
        '{"model": "\\ud800"}',
        "",
        "null",
        "[]",
        json.dumps({**ask, "messages": {"role": "user"}}),
        json.dumps({**ask, "model": "a\0b", "messages": HI}),
        json.dumps({**ask, "model": "x" * 100_000, "messages": HI}),
        json.dumps({**ask, "model": "tinker://../..", "messages": HI}),
    ]
    huge = json.dumps({**ask, "messages": HI, "max_tokens": 10**400})
    asked = [(path, body) for path in ("messages", "messages/count_tokens") for body in bodies]
    async with httpx.AsyncClient(base_url=url, headers={"X-API-Key": KEYS["ann"]}, trust_env=False, timeout=60) as http:
        for path, body in [*asked, ("messages", huge)]:
            answer = await http.post(f"/anthropic/v1/{path}", content=body)
            assert answer.status_code in (400, 404, 413), (body[:200], answer.status_code, answer.text[:500])
            error = answer.json()["error"]
            assert error["type"] in ("invalid_request_error", "not_found_error", "request_too_large")
            assert 0 < len(error["message"]) < 2000


async def test_a_conversation_with_an_alias_that_stores_is_kept_under_the_id_of_the_message(
    client: anthropic.AsyncAnthropic, writes: Writes, ann: User
) -> None:
    writes("Hello.")
    await ann.http.put("aliases/prod", json={"target": MODEL, "store": True})
    asked: dict[str, Any] = {"model": "prod", "max_tokens": 50, "messages": HI}

    whole = await client.messages.create(**asked)
    async with client.messages.stream(**asked) as stream:
        told = await stream.get_final_message()
    other = await client.messages.create(**{**asked, "model": MODEL})

    for message in (whole, told):
        kept = (await ann.http.get(f"conversations/{message.id}")).json()
        assert (kept["api"], kept["model"], kept["messages"]) == ("messages", "prod", HI)
        assert kept["answers"][0]["message"] == {"role": "assistant", "content": "Hello."}
    assert (await ann.http.get(f"conversations/{other.id}")).status_code == 404
