"""Messages (Anthropic): the next message of a conversation, whole or as a stream, and the size of a prompt."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from fastapi import Request, Response

from chockstone.api.anthropic.answers import PING, MessageAnswer, encode_message, server_sent
from chockstone.api.anthropic.message_request import (
    read_count_request,
    read_message_request,
)
from chockstone.api.anthropic.schemas import COUNT_REQUEST, MESSAGE_REQUEST, documented
from chockstone.api.chat.chat_service import ChatDep
from chockstone.api.chat.connected import while_connected
from chockstone.api.chat.generation import Delta, TextGeneration
from chockstone.api.chat.orders import Conversation
from chockstone.api.chat.request_body import read_request
from chockstone.api.chat.storing import StoredRequest
from chockstone.api.chat.streamed_answer import StreamedAnswer
from chockstone.api.routes import Routes
from chockstone.api.users import CallerDep
from chockstone.api.vendors.error_shapes import error_body
from chockstone.api.vendors.paths import Vendor
from chockstone.engine.conversations.answers import new_conversation_id
from chockstone.wire.failures import BadRequest, RequestError

log = logging.getLogger(__name__)
routes = Routes(tags=["Anthropic"])

PING_SECONDS: Final = 15.0  # without an event; proxies close connections that are silent for longer


@routes.post(
    "/messages",
    summary="Create a message (Anthropic)",
    openapi_extra=documented(MESSAGE_REQUEST),
)
async def create_message(request: Request, chat: ChatDep, caller: CallerDep) -> Response:
    """The model writes the next message, or calls tools. With `stream`, server-sent events."""
    asked = await read_request(request, read_message_request)
    model = await chat.find_model(caller, asked.model)
    message_id = new_conversation_id("msg_", datetime.now(UTC))
    stored = StoredRequest(
        store=None,  # the API has no field for it
        answer_id=message_id,
        api="messages",
        parameters=asked.parameters,
        messages=_messages_of(asked.conversation),
        tools=asked.conversation.tools,
    )
    before_end = await chat.choose_storing(caller, model, stored)
    start = chat.start(model, asked.conversation, asked.parameters, before_end=before_end)
    generation = await while_connected(request, start)
    answer = MessageAnswer(asked, generation, message_id=message_id)
    if asked.is_stream:
        return StreamedAnswer(generation, stream_events(answer, generation))
    try:
        await while_connected(request, _write(answer, generation))
    finally:
        await generation.aclose()
    return Response(encode_message(answer.whole()), media_type="application/json")


@routes.post(
    "/messages/count_tokens",
    summary="Count the tokens of a prompt (Anthropic)",
    openapi_extra=documented(COUNT_REQUEST),
)
async def count_tokens(request: Request, chat: ChatDep, caller: CallerDep) -> dict[str, int]:
    """As the chat template of the model writes it, with its special tokens."""
    asked = await read_request(request, read_count_request)
    model = await chat.find_model(caller, asked.model)
    return {"input_tokens": await while_connected(request, chat.count_tokens(model, asked.conversation))}


def _messages_of(conversation: Conversation) -> list[Mapping[str, Any]]:  # Any: plain JSON
    """With the beginning of the answer, if the client wrote one."""
    begun = [{"role": "assistant", "content": conversation.begin}] if conversation.begin else []
    return [*conversation.messages, *begun]


async def _write(answer: MessageAnswer, generation: TextGeneration) -> None:
    async for delta in generation:
        answer.add(delta)
    answer.finish()


async def stream_events(
    answer: MessageAnswer, generation: TextGeneration, *, ping_seconds: float = PING_SECONDS
) -> AsyncIterator[bytes]:
    """Server-sent events. A failure in the middle is the last of them."""
    yield _encoded([answer.beginning(), PING])
    try:
        async for delta in _with_silences(generation, ping_seconds):
            if events := [PING] if delta is None else answer.add(delta):
                yield _encoded(events)
        yield _encoded(answer.finish())
    except RequestError as error:
        log.warning("stream failed error=%s", error)
        status = 400 if isinstance(error, BadRequest) else 503
        yield _encoded([error_body(Vendor.ANTHROPIC, status, str(error))])


async def _with_silences(generation: TextGeneration, seconds: float) -> AsyncIterator[Delta | None]:
    """The deltas, and None whenever there was none for so long."""
    step: asyncio.Task[Delta | None] | None = None
    try:
        while True:
            step = asyncio.create_task(_next(generation))
            while not (await asyncio.wait((step,), timeout=seconds))[0]:
                yield None
            if (delta := step.result()) is None:
                return
            yield delta
    finally:
        if step is not None:
            step.cancel()


async def _next(generation: TextGeneration) -> Delta | None:
    return await anext(generation, None)


def _encoded(events: Iterable[dict[str, object]]) -> bytes:
    return b"".join(map(server_sent, events))
