"""Chat completions (OpenAI): the next message of a conversation."""

from __future__ import annotations

from functools import partial

from fastapi import Request, Response

from chockstone.api.chat.chat_service import ChatDep
from chockstone.api.chat.connected import while_connected
from chockstone.api.chat.storing import StoredRequest
from chockstone.api.chat.streamed_answer import StreamedAnswer
from chockstone.api.openai.answer_head import AnswerHead
from chockstone.api.openai.answering import generate_all, read_request, stream_chunks, whole_answer
from chockstone.api.openai.chat.chat_answer import ChatAnswer, message_of
from chockstone.api.openai.chat.chat_request import read_chat_request
from chockstone.api.openai.schemas import CHAT_REQUEST, documented
from chockstone.api.routes import Routes
from chockstone.api.users import CallerDep

routes = Routes(tags=["OpenAI"])


@routes.post("/chat/completions", summary="Create a chat completion (OpenAI)", openapi_extra=documented(CHAT_REQUEST))
async def create_chat_completion(request: Request, chat: ChatDep, caller: CallerDep) -> Response:
    """The model writes the next message, or calls tools. With `stream`, server-sent events."""
    asked = await read_request(request, read_chat_request)
    model = await chat.find_model(caller, asked.model)
    head = AnswerHead.make("chatcmpl-", model)
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
            describe=partial(message_of, head),
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
