"""Completions (OpenAI): text or tokens continued, without a chat template."""

from __future__ import annotations

from fastapi import Request, Response

from chockstone.api.chat.chat_service import ChatDep
from chockstone.api.chat.connected import while_connected
from chockstone.api.chat.orders import PlainPrompt
from chockstone.api.chat.request_body import read_request
from chockstone.api.chat.storing import StoredRequest
from chockstone.api.chat.streamed_answer import StreamedAnswer
from chockstone.api.openai.answer_head import AnswerHead
from chockstone.api.openai.answering import generate_all, stream_chunks, whole_answer
from chockstone.api.openai.completions.completion_answer import CompletionAnswer
from chockstone.api.openai.completions.completion_request import CompletionRequest, read_completion_request
from chockstone.api.openai.schemas import COMPLETION_REQUEST, documented
from chockstone.api.routes import Routes
from chockstone.api.users import CallerDep

routes = Routes(tags=["OpenAI"])


@routes.post("/completions", summary="Create a completion (OpenAI)", openapi_extra=documented(COMPLETION_REQUEST))
async def create_completion(request: Request, chat: ChatDep, caller: CallerDep) -> Response:
    """The model continues each prompt. With `stream`, server-sent events."""
    asked = await read_request(request, read_completion_request)
    model = await chat.find_model(caller, asked.model)
    head = AnswerHead.make("cmpl-", model)
    before_end = None
    if len(asked.prompts) == 1:  # several prompts have one id
        before_end = await chat.choose_storing(caller, model, _stored_request(head, asked))
    if not asked.is_streamed:
        work = generate_all(chat, model, asked.prompts, asked.parameters, before_end=before_end)
        generations = await while_connected(request, work)
        answer = CompletionAnswer(head, asked, generations)
        return await whole_answer(answer.whole, tokens=sum(each.completion_tokens for each in generations))
    start = chat.start(model, asked.prompts[0], asked.parameters, before_end=before_end)
    generation = await while_connected(request, start)
    answer = CompletionAnswer(head, asked, [generation])
    usage = answer.usage_chunk if asked.has_usage else None
    return StreamedAnswer(generation, stream_chunks(generation, answer.chunks, usage))


def _stored_request(head: AnswerHead, asked: CompletionRequest) -> StoredRequest:
    [prompt] = asked.prompts
    return StoredRequest(
        store=asked.store,
        answer_id=head.answer_id,
        api="completions",
        parameters=asked.parameters,
        messages=[{"prompt": prompt.text}] if isinstance(prompt, PlainPrompt) else [],
        metadata=asked.metadata,
        describe=lambda generation, number: {"text": generation.choices[number].text},
    )
