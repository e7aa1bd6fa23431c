from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from chockstone.api.chat import chat_service
from chockstone.api.chat.chat_service import ChatService, PromptTooLong
from chockstone.api.chat.orders import Conversation, GenerationParameters, PlainPrompt, TokenPrompt
from chockstone.api.tokenizers import tokenizer_service
from chockstone.api.users import Caller
from chockstone.engine.config import Busy
from chockstone.wire.failures import BadParameter, BadRequest
from support.api.users import MODEL
from support.chat import CONTEXT, WEATHER, tokens_of, written
from support.served import Served


async def body_of(served: Served, chat: ChatService, caller: Caller, prompt: Any, **parameters: Any) -> dict[str, Any]:
    """What the worker is asked."""
    generation = await chat.start(await chat.find_model(caller, MODEL), prompt, GenerationParameters(**parameters))
    await generation.finish()
    body: dict[str, Any] = orjson.loads([body for word, _, body in served.backend.calls if word == "sample"][-1])
    return body


async def test_the_worker_is_asked_what_the_client_asks(served: Served, chat: ChatService, caller: Caller) -> None:
    parameters = {"max_tokens": 7, "temperature": 0.5, "top_p": 0.9, "top_k": 5, "seed": 3, "stop": ("x",)}
    body = await body_of(served, chat, caller, TokenPrompt((1, 2)), **parameters, choices=2)

    assert body["prompt"] == {"chunks": [{"type": "encoded_text", "tokens": [1, 2]}]}
    assert body["sampling_params"] == {**parameters, "stop": ["x"]}
    assert body["num_samples"] == 2


async def test_more_tokens_than_there_is_room_for_are_as_many_as_there_is(
    served: Served, chat: ChatService, caller: Caller
) -> None:
    body = await body_of(served, chat, caller, TokenPrompt((1,) * 10), max_tokens=CONTEXT - 10)
    assert "max_tokens" not in body["sampling_params"]
    body = await body_of(served, chat, caller, TokenPrompt((1,) * 10), max_tokens=CONTEXT - 11)
    assert body["sampling_params"]["max_tokens"] == CONTEXT - 11


async def test_more_alternatives_than_an_answer_can_hold_are_refused(
    served: Served, chat: ChatService, caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chat_service, "MAX_ALTERNATIVES", 2 * 5 * (CONTEXT - 10))
    model = await chat.find_model(caller, MODEL)

    await body_of(served, chat, caller, TokenPrompt((1,) * 10), choices=2, alternatives=5)
    await body_of(served, chat, caller, TokenPrompt((1,)), choices=4, alternatives=20, max_tokens=1)
    with pytest.raises(BadRequest, match=f"2 choices of up to {CONTEXT - 9} tokens with 5 alternatives"):
        await chat.start(model, TokenPrompt((1,) * 9), GenerationParameters(choices=2, alternatives=5))


async def test_a_prompt_that_fills_the_context_is_refused(chat: ChatService, caller: Caller) -> None:
    model = await chat.find_model(caller, MODEL)
    with pytest.raises(PromptTooLong, match="shorten the prompt"):
        await chat.start(model, TokenPrompt((1,) * CONTEXT), GenerationParameters())
    for prompt in (PlainPrompt("a" * 4_000_001), Conversation(messages=[{"role": "user", "content": "a" * 4_000_001}])):
        with pytest.raises(PromptTooLong, match="prompt is too long: .* characters"):
            await chat.start(model, prompt, GenerationParameters())
    long = PlainPrompt("a b " * 50_000)
    with pytest.raises(PromptTooLong, match=rf"prompt is too long: at least \d+ tokens > {CONTEXT} maximum"):
        await chat.start(model, long, GenerationParameters())
    assert await chat.count_tokens(model, long) > 50_000


async def test_tools_need_a_template_that_knows_them(chat: ChatService, caller: Caller) -> None:
    asked = Conversation(messages=[{"role": "user", "content": "Hi"}], tools=[WEATHER])

    with pytest.raises(BadRequest, match="knows no tools"):
        await chat.start(await chat.find_model(caller, MODEL), asked, GenerationParameters())


async def test_tokens_are_counted_as_they_would_be_sent(chat: ChatService, caller: Caller) -> None:
    model = await chat.find_model(caller, "helper")
    messages = [{"role": "user", "content": "Hi"}]
    plain = await chat.count_tokens(model, Conversation(messages=messages))
    with_tools = await chat.count_tokens(model, Conversation(messages=messages, tools=[WEATHER]))
    generation = await chat.start(model, Conversation(messages=messages), GenerationParameters())
    await generation.aclose()

    assert plain == len(generation.prompt_tokens) < with_tools


async def test_a_tokenizer_with_too_much_to_do_is_busy(
    chat: ChatService, caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokenizer_service, "MAX_WAITING", 0)

    with pytest.raises(Busy, match="try again"):
        await chat.start(await chat.find_model(caller, MODEL), PlainPrompt("Hi"), GenerationParameters())


async def test_a_constraint_reaches_the_worker(served: Served, chat: ChatService, caller: Caller) -> None:
    body = await body_of(served, chat, caller, TokenPrompt((1,)), constraint={"json_object": True})

    assert body["constraint"] == {"json_object": True}
    with pytest.raises(BadRequest, match="json_schema"):
        await body_of(served, chat, caller, TokenPrompt((1,)), constraint={"json_schema": 3})


async def test_a_tool_that_must_be_called_is_a_constraint(served: Served, chat: ChatService, caller: Caller) -> None:
    messages = [{"role": "user", "content": "Hi"}]
    asked = Conversation(messages=messages, tools=[WEATHER], tool_choice="required")
    free = Conversation(messages=messages, tools=[WEATHER])
    model = await chat.find_model(caller, "helper")
    chat.can_constrain = True
    generation = await chat.start(model, asked, GenerationParameters())
    await generation.aclose()

    body = orjson.loads([body for word, _, body in served.backend.calls if word == "sample"][-1])
    assert body["constraint"]["prefix"] == "<tool_call>\n"
    assert len(generation.prompt_tokens) == await chat.count_tokens(model, free)


async def constraint_of(served: Served, chat: ChatService, caller: Caller, **more: Any) -> Any:
    asked = Conversation(messages=[{"role": "user", "content": "Hi"}], tools=[WEATHER], **more)
    generation = await chat.start(await chat.find_model(caller, "helper"), asked, GenerationParameters())
    await generation.aclose()
    return orjson.loads([body for word, _, body in served.backend.calls if word == "sample"][-1]).get("constraint")


async def test_vllm_samples_what_needs_no_constraint(served: Served, chat: ChatService, caller: Caller) -> None:
    """The worker is asked only for what must be held to a schema."""
    chat.can_constrain, chat._samples_by_vllm = True, True
    strict = frozenset({"weather"})

    assert await constraint_of(served, chat, caller) is None
    assert await constraint_of(served, chat, caller, tool_choice="required") is None
    forced = await constraint_of(served, chat, caller, tool_choice="required", strict_tools=strict)
    assert "mark" not in forced
    assert (await constraint_of(served, chat, caller, strict_tools=strict))["mark"] == "<tool_call>"
    assert await constraint_of(served, chat, caller, tool_choice="none", strict_tools=strict) is None


async def test_a_refusal_names_the_strict_tool_that_failed(served: Served, chat: ChatService, caller: Caller) -> None:
    chat.can_constrain = True
    parameters = {"type": "object", "properties": {"a": {"$ref": "http://127.0.0.1/x"}}}
    far = {"type": "function", "function": {"name": "zoom", "parameters": parameters}}
    model = await chat.find_model(caller, "helper")

    def asked(*strict: str) -> Conversation:
        messages = [{"role": "user", "content": "Hi"}]
        return Conversation(
            messages=messages, tools=[WEATHER, far], tool_choice="required", strict_tools=frozenset(strict)
        )

    generation = await chat.start(model, asked("weather"), GenerationParameters())
    await generation.aclose()
    with pytest.raises(BadParameter, match="tool 'zoom' cannot be strict here: its schema refers to"):
        await chat.start(model, asked("weather", "zoom"), GenerationParameters())

    body = orjson.loads([body for word, _, body in served.backend.calls if word == "sample"][-1])
    calls = body["constraint"]["json_schema"]["anyOf"]
    assert [each["properties"]["arguments"] for each in calls] == [
        WEATHER["function"]["parameters"],  # type: ignore[index]  # it is a JSON object
        {"type": "object"},
    ]


async def test_a_message_that_has_begun_ends_the_prompt(
    served: Served, chat: ChatService, caller: Caller, models: dict[str, Path]
) -> None:
    model, messages = await chat.find_model(caller, MODEL), [{"role": "user", "content": "Hi"}]
    served.backend.sequences = written(models[MODEL], " warm.")
    plain = await chat.start(model, Conversation(messages=messages), GenerationParameters())
    begun = await chat.start(model, Conversation(messages=messages, begin="It is"), GenerationParameters())
    await begun.finish()

    assert begun.prompt_tokens == (*plain.prompt_tokens, *tokens_of(models[MODEL], "It is"))
    assert begun.choices[0].text == " warm."
    await plain.aclose()
