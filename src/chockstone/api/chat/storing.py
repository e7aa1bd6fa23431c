"""Storing: keeps the conversation of one request, if its client or the alias of its model wants that.

Shared by the APIs of other vendors. A conversation is durable before the client gets the end of its answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from chockstone.api.chat.generation import BeforeEnd, TextGeneration
from chockstone.api.chat.orders import GenerationParameters
from chockstone.api.chat.served_model import NamedModel
from chockstone.api.users import Caller
from chockstone.engine.conversations import Api, Conversations, StoredAnswer, StoredChoice

PlainObject = Mapping[str, Any]  # Any: plain JSON


def plain_message(generation: TextGeneration, number: int) -> PlainObject:
    """Text and calls of tools of a choice, without ids."""
    choice = generation.choices[number]
    calls = [{"name": call.name, "arguments": call.arguments} for call in choice.calls]
    return {"role": "assistant", "content": choice.text, **({"tool_calls": calls} if calls else {})}


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRequest:
    """What is kept of a request beside its tokens, and whether it is to be kept."""

    store: bool | None  # as the client sent it; None: the alias decides
    answer_id: str
    api: Api
    parameters: GenerationParameters
    messages: Sequence[PlainObject] = ()
    tools: Sequence[PlainObject] = ()
    metadata: Mapping[str, str] = field(default_factory=dict)
    describe: Callable[[TextGeneration, int], PlainObject] = plain_message  # what the client got of a choice


async def choose_storing(
    conversations: Conversations, caller: Caller, model: NamedModel, request: StoredRequest
) -> BeforeEnd | None:
    """What keeps the generation before its end; None: nothing does.

    Raises ConversationsFull when the client asked for what there is no room for. What only the alias asked for never
    fails a request.
    """
    if request.store:
        await conversations.check_room(caller.user_id)

        async def keep(generation: TextGeneration) -> None:
            await conversations.keep(_stored_answer(caller, model, request, generation))

        return keep
    if request.store is None and model.alias is not None and model.alias.stores:

        async def keep_quietly(generation: TextGeneration) -> None:
            await conversations.keep_quietly(_stored_answer(caller, model, request, generation))

        return keep_quietly
    return None


def _stored_answer(
    caller: Caller, model: NamedModel, request: StoredRequest, generation: TextGeneration
) -> StoredAnswer:
    return StoredAnswer(
        conversation_id=request.answer_id,
        owner=caller.user_id,
        api=request.api,
        model=model.name,
        base_model=model.base_model,
        path=model.path,
        weights_digest=model.source.seal,
        sampler=model.source.sampling_session_id or None,
        prompt_tokens=generation.prompt_tokens,
        messages=request.messages,
        tools=request.tools,
        choices=[
            StoredChoice(
                tokens=[each.token for each in choice.tokens],
                logprobs=[each.logprob for each in choice.tokens],
                finish_reason="stop" if choice.finish is None else choice.finish.reason,
                message=request.describe(generation, number),
            )
            for number, choice in enumerate(generation.choices)
        ],
        sampling=request.parameters.to_json(),
        metadata=request.metadata,
    )
