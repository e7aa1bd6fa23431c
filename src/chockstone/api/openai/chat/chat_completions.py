"""Chat completions (OpenAI): the next message of a conversation."""

from __future__ import annotations

from typing import Any, Final

from fastapi import Request, Response

from chockstone.api.chat.chat_service import ChatDep
from chockstone.api.chat.connected import while_connected
from chockstone.api.chat.request_body import read_request
from chockstone.api.chat.storing import StoredRequest
from chockstone.api.chat.streamed_answer import StreamedAnswer
from chockstone.api.openai.answer_head import AnswerHead
from chockstone.api.openai.answering import (
    StoredId,
    generate_all,
    refuse_query,
    shown_answer,
    stream_chunks,
    whole_answer,
)
from chockstone.api.openai.chat.chat_answer import ChatAnswer, message_of, stored_completion
from chockstone.api.openai.chat.chat_request import read_chat_request
from chockstone.api.openai.schemas import CHAT_REQUEST, documented
from chockstone.api.routes import Routes
from chockstone.api.users import CallerDep

routes = Routes(tags=["OpenAI"])
_PREFIX: Final = "chatcmpl-"  # of ids


@routes.post("/chat/completions", summary="Create a chat completion (OpenAI)", openapi_extra=documented(CHAT_REQUEST))
async def create_chat_completion(request: Request, chat: ChatDep, caller: CallerDep) -> Response:
    """The model writes the next message, or calls tools. With `stream`, server-sent events."""
    asked = await read_request(request, read_chat_request)
    model = await chat.find_model(caller, asked.model)
    head = AnswerHead.make(_PREFIX, model)
    before_end = await chat.choose_storing(
        caller,
        model,
        StoredRequest(
            store=asked.store,
            answer_id=head.answer_id,
            api="chat.completions",
            parameters=asked.parameters,
            messages=asked.conversation.messages,
            tools=asked.conversation.tools,
            metadata=asked.metadata,
            describe=lambda generation, number: message_of(head, number, generation.choices[number]),
        ),
    )
    if not asked.is_streamed:
        work = generate_all(chat, model, (asked.conversation,), asked.parameters, before_end=before_end)
        [generation] = await while_connected(request, work)
        answer = ChatAnswer(head, asked, generation)
        return await whole_answer(answer.whole, tokens=generation.completion_tokens)
    start = chat.start(model, asked.conversation, asked.parameters, before_end=before_end)
    generation = await while_connected(request, start)
    answer = ChatAnswer(head, asked, generation)
    usage = answer.usage_chunk if asked.has_usage else None
    return StreamedAnswer(generation, stream_chunks(generation, answer.chunks, usage))


@routes.get("/chat/completions/{completion_id}", summary="Show a stored chat completion (OpenAI)")
async def get_chat_completion(completion_id: StoredId, request: Request, chat: ChatDep, caller: CallerDep) -> Response:
    """One of the caller's that was created with `store`."""
    refuse_query(request)
    return await shown_answer(stored_completion, await chat.stored(caller, completion_id, prefix=_PREFIX))


@routes.delete("/chat/completions/{completion_id}", summary="Delete a stored chat completion (OpenAI)")
async def delete_chat_completion(completion_id: StoredId, chat: ChatDep, caller: CallerDep) -> dict[str, Any]:
    """Delete the conversation, with its rewards and corrections."""
    await chat.delete_stored(caller, completion_id, prefix=_PREFIX)
    return {"id": completion_id, "object": "chat.completion.deleted", "deleted": True}
