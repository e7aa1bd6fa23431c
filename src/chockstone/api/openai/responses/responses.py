"""Responses (OpenAI): the next message of a conversation, as items."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from typing import Any, Final

from fastapi import Request, Response

from chockstone.api.chat.chat_service import ChatDep
from chockstone.api.chat.connected import while_connected
from chockstone.api.chat.generation import TextGeneration
from chockstone.api.chat.request_body import read_request
from chockstone.api.chat.storing import StoredRequest
from chockstone.api.chat.streamed_answer import StreamedAnswer
from chockstone.api.openai.answer_head import AnswerHead
from chockstone.api.openai.answering import (
    StoredId,
    encode_delta,
    generate_all,
    refuse_query,
    shown_answer,
    whole_answer,
)
from chockstone.api.openai.events import encode_named
from chockstone.api.openai.responses.response_answer import ResponseAnswer, stored_message, stored_response
from chockstone.api.openai.responses.response_request import read_response_request
from chockstone.api.openai.schemas import RESPONSE_REQUEST, documented
from chockstone.api.routes import Routes
from chockstone.api.users import CallerDep
from chockstone.wire.failures import BadParameter, RequestError

routes = Routes(tags=["OpenAI"])
_PREFIX: Final = "resp_"  # of ids


@routes.post("/responses", summary="Create a response (OpenAI)", openapi_extra=documented(RESPONSE_REQUEST))
async def create_response(request: Request, chat: ChatDep, caller: CallerDep) -> Response:
    """The model writes a message, or calls tools. With `stream`, server-sent events."""
    asked = await read_request(request, read_response_request)
    model = await chat.find_model(caller, asked.model)
    head = AnswerHead.make(_PREFIX, model)
    before_end = await chat.choose_storing(
        caller,
        model,
        StoredRequest(
            store=asked.store,
            answer_id=head.answer_id,
            api="responses",
            parameters=asked.parameters,
            messages=asked.conversation.messages,
            tools=asked.conversation.tools,
            metadata=asked.metadata,
            describe=partial(stored_message, head, asked),
        ),
    )
    if not asked.is_streamed:
        work = generate_all(chat, model, (asked.conversation,), asked.parameters, before_end=before_end)
        [generation] = await while_connected(request, work)
        answer = ResponseAnswer(head, asked, generation)
        return await whole_answer(answer.whole, tokens=generation.completion_tokens)
    start = chat.start(model, asked.conversation, asked.parameters, before_end=before_end)
    generation = await while_connected(request, start)
    return StreamedAnswer(generation, _events(generation, ResponseAnswer(head, asked, generation)))


@routes.get("/responses/{response_id}", summary="Show a stored response (OpenAI)")
async def get_response(
    response_id: StoredId, request: Request, chat: ChatDep, caller: CallerDep, stream: bool = False
) -> Response:
    """One of the caller's that was created with `store`."""
    refuse_query(request, known=["stream"])
    if stream:
        raise BadParameter("stream is not supported for a stored response; leave it out", param="stream")
    return await shown_answer(stored_response, await chat.stored(caller, response_id, prefix=_PREFIX))


@routes.delete("/responses/{response_id}", summary="Delete a stored response (OpenAI)")
async def delete_response(response_id: StoredId, chat: ChatDep, caller: CallerDep) -> dict[str, Any]:
    """Delete the conversation, with its rewards and corrections."""
    await chat.delete_stored(caller, response_id, prefix=_PREFIX)
    return {"id": response_id, "object": "response", "deleted": True}


async def _events(generation: TextGeneration, answer: ResponseAnswer) -> AsyncIterator[bytes]:
    for event in answer.begin():
        yield encode_named(event)
    try:
        async for delta in generation:
            if encoded := await encode_delta(delta, lambda delta: map(encode_named, answer.events(delta))):
                yield encoded
    except RequestError as error:
        yield encode_named(answer.failed(error))
        return
    yield encode_named(answer.end())
