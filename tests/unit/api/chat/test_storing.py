from __future__ import annotations

import errno
from pathlib import Path

import pytest

from chockstone.api.chat.chat_service import ChatService
from chockstone.api.chat.generation import TextGeneration
from chockstone.api.chat.orders import Conversation, GenerationParameters, PlainPrompt
from chockstone.api.chat.storing import StoredRequest
from chockstone.api.context import Context
from chockstone.api.users import Caller
from chockstone.engine.conversations import ConversationMissing, Conversations
from chockstone.engine.conversations.owner_directory import OwnerDirectory
from chockstone.wire.failures import ServerFailure
from support.api.users import MODEL, User
from support.chat import CALL, WEATHER, tokens_of, written
from support.served import Served

PARAMETERS = GenerationParameters(temperature=0.5)


@pytest.fixture
def kept(context: Context) -> Conversations:
    return context.engine.conversations


async def talk(
    chat: ChatService, caller: Caller, *, store: bool | None, model: str = MODEL
) -> tuple[str, TextGeneration]:
    """Not read yet."""
    named = await chat.find_model(caller, model)
    answer_id = chat._context.engine.conversations.new_id("chatcmpl-")
    request = StoredRequest(store=store, answer_id=answer_id, api="chat.completions", parameters=PARAMETERS)
    before_end = await chat.choose_storing(caller, named, request)
    return answer_id, await chat.start(named, PlainPrompt("Hi"), PARAMETERS, before_end=before_end)


async def test_the_conversation_is_there_before_the_last_delta(
    chat: ChatService, caller: Caller, served: Served, kept: Conversations, models: dict[str, Path]
) -> None:
    served.backend.sequences = written(models[MODEL], "Hello.")
    answer_id, generation = await talk(chat, caller, store=True)
    with pytest.raises(ConversationMissing):
        await kept.get("ann", answer_id)

    async for delta in generation:
        is_last = delta.finish is not None
        assert not is_last or await kept.get("ann", answer_id)

    found = (await kept.get("ann", answer_id)).answer
    (choice,), (seen,) = found.choices, generation.choices
    assert list(choice.tokens) == tokens_of(models[MODEL], "Hello.")
    assert list(choice.logprobs) == [each.logprob for each in seen.tokens]
    assert choice.message == {"role": "assistant", "content": "Hello."}
    assert tuple(found.prompt_tokens) == generation.prompt_tokens
    assert (found.model, found.base_model, found.path, found.sampling["temperature"]) == (MODEL, MODEL, None, 0.5)


async def test_calls_of_tools_are_a_part_of_the_message(
    chat: ChatService, caller: Caller, served: Served, models: dict[str, Path], kept: Conversations
) -> None:
    served.backend.sequences = written(models["helper"], CALL)
    named = await chat.find_model(caller, "helper")
    request = StoredRequest(store=True, answer_id=kept.new_id("msg_"), api="messages", parameters=PARAMETERS)
    asked = Conversation(messages=[{"role": "user", "content": "Rain?"}], tools=[WEATHER])
    before_end = await chat.choose_storing(caller, named, request)
    await (await chat.start(named, asked, PARAMETERS, before_end=before_end)).finish()

    (choice,) = (await kept.get("ann", request.answer_id)).answer.choices
    assert choice.message["tool_calls"] == [{"name": "weather", "arguments": '{"city": "Oslo"}'}]
    assert choice.finish_reason == "tool_calls"


@pytest.mark.parametrize(
    ("alias_stores", "asked", "is_kept"),
    [(True, None, True), (True, False, False), (False, None, False), (False, True, True)],
)
async def test_the_request_decides_before_the_alias(
    alias_stores: bool,
    asked: bool | None,
    is_kept: bool,
    chat: ChatService,
    caller: Caller,
    served: Served,
    ann: User,
    models: dict[str, Path],
    kept: Conversations,
) -> None:
    served.backend.sequences = written(models[MODEL], "Hello.")
    path = await ann.save(await ann.run(), "one", kind="sampler_weights")
    await ann.http.put("aliases/prod", json={"target": path, "store": alias_stores})

    answer_id, generation = await talk(chat, caller, store=asked, model="prod")
    await generation.finish()

    if not is_kept:
        with pytest.raises(ConversationMissing):
            await kept.get("ann", answer_id)
        return
    found = (await kept.get("ann", answer_id)).answer
    assert (found.model, found.path) == ("prod", path)
    assert found.weights_digest == (await chat.find_model(caller, "prod")).source.seal is not None


async def test_a_conversation_that_cannot_be_written_fails_only_who_asked_for_it(
    chat: ChatService,
    caller: Caller,
    served: Served,
    ann: User,
    models: dict[str, Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(OwnerDirectory, "write", fail)
    served.backend.sequences = written(models[MODEL], "Hello.")
    await ann.http.put("aliases/prod", json={"target": MODEL, "store": True})

    _, asked_for = await talk(chat, caller, store=True)
    with pytest.raises(ServerFailure, match="could not be kept"):
        await asked_for.finish()
    _, by_alias = await talk(chat, caller, store=None, model="prod")
    await by_alias.finish()
    assert by_alias.choices[0].text == "Hello."


async def test_an_answer_that_broke_off_is_not_kept(
    chat: ChatService, caller: Caller, served: Served, models: dict[str, Path], kept: Conversations
) -> None:
    served.backend.sequences = written(models[MODEL], "Hello.")
    _, generation = await talk(chat, caller, store=True)

    await generation.aclose()

    assert (await kept.use("ann")).count == 0
