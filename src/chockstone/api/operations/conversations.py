"""Conversations: lists, exports, rewards, corrects and deletes those that were stored for the caller."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Sequence
from typing import Annotated, Final

import orjson
from fastapi import Path, Query
from fastapi.responses import StreamingResponse

from chockstone.api.chat.chat_service import ChatDep, ChatService
from chockstone.api.chat.corrections import encode_correction
from chockstone.api.context import Context, ContextDep
from chockstone.api.routes import Routes
from chockstone.api.tokenizers.tokenizer_service import TokenizerBusy, TokenizerFailed
from chockstone.api.users import Caller, CallerDep
from chockstone.engine.config import Busy
from chockstone.engine.conversations import ConversationMissing, Correction, KeptConversation
from chockstone.engine.conversations.answers import is_conversation_id
from chockstone.engine.conversations.datums import LossName, datums_of
from chockstone.wire.failures import BadRequest
from chockstone.wire.messages.operations.conversations import (
    ChoiceFeedback,
    ConversationAnswer,
    ConversationDatumLine,
    ConversationEntry,
    ConversationResponse,
    ConversationsResponse,
    CorrectionEntry,
    CorrectionRequest,
    RewardRequest,
)

routes = Routes(prefix="/conversations", tags=["conversations"])
MAX_LIMIT: Final = 1000
_LINES_AT_ONCE: Final = 32

ConversationId = Annotated[str, Path(max_length=100, description="the id of the answer that the client got")]
Model = Annotated[str | None, Query(max_length=1000, description="only those whose client named this model")]
Rewarded = Annotated[bool | None, Query(description="only those with a reward, or only those without")]
Place = Annotated[str | None, Query(max_length=100)]


@routes.get("", summary="List conversations")
async def list_conversations(
    context: ContextDep,
    caller: CallerDep,
    limit: Annotated[int, Query(ge=1, le=MAX_LIMIT)] = 50,
    before: Place = None,
    model: Model = None,
    rewarded: Rewarded = None,
) -> ConversationsResponse:
    """The caller's stored conversations, newest first. ``before``: ``next_before`` of the page before."""
    kept, owner = context.engine.conversations, caller.user_id
    page = await kept.page(owner, _entry, limit=limit, before=_place(before), model=model, is_rewarded=rewarded)
    use = await kept.use(owner)
    return ConversationsResponse(
        conversations=list(page.entries),
        next_before=page.next_before,
        count=use.count,
        size_bytes=use.size_bytes,
        quota_bytes=use.quota_bytes,
    )


@routes.get(
    "/datums",
    summary="Export conversations as datums",
    response_model=None,
    responses={200: {"model": ConversationDatumLine, "content": {"application/x-ndjson": {}}}},
)
async def export_datums(
    context: ContextDep,
    caller: CallerDep,
    loss_fn: LossName = "importance_sampling",
    after: Place = None,
    model: Model = None,
    min_reward: Annotated[
        float | None, Query(allow_inf_nan=False, description="leave out answers with less, or with none")
    ] = None,
) -> StreamingResponse:
    """A line of JSON for each answer, oldest first, with a ``datum`` that the Tinker SDK reads.

    ``importance_sampling``: the answers that have a reward, with ``target_tokens``, ``logprobs`` and ``advantages``.
    ``cross_entropy``: all answers, with ``target_tokens`` and ``weights``; a correction takes the place of its answer.
    ``after``: only conversations that are newer than this id.
    """
    await context.engine.conversations.use(caller.user_id)  # what cannot be read is refused before the answer begins
    lines = _lines(context, caller, loss_fn, _place(after), model, min_reward)
    return StreamingResponse(lines, media_type="application/x-ndjson")


@routes.get("/{conversation_id}", summary="Read a conversation")
async def get_conversation(
    conversation_id: ConversationId, context: ContextDep, caller: CallerDep
) -> ConversationResponse:
    """A conversation of the caller, with token ids and log-probabilities as they were sampled."""
    return await asyncio.to_thread(_full, await context.engine.conversations.get(caller.user_id, conversation_id))


@routes.put("/{conversation_id}/reward", summary="Attach a reward to an answer")
async def put_reward(
    conversation_id: ConversationId, request: RewardRequest, context: ContextDep, caller: CallerDep
) -> ConversationEntry:
    """Attach a reward in place of the one that the answer had; null removes it. Durable once this is answered."""
    context.refuse_when_stopping()
    rewarded = await context.engine.conversations.reward(
        caller.user_id, conversation_id, request.reward, choice=request.choice
    )
    return _entry(rewarded)


@routes.put("/{conversation_id}/correction", summary="Attach a correction to an answer")
async def put_correction(
    conversation_id: ConversationId, request: CorrectionRequest, context: ContextDep, chat: ChatDep, caller: CallerDep
) -> ConversationEntry:
    """Attach what the answer should have been, in place of an earlier correction. Durable once this is answered.

    A text is encoded by the model's tokenizer. The special token that ended the sampled answer follows it.
    """
    context.refuse_when_stopping()
    kept, owner = context.engine.conversations, caller.user_id
    if request.tokens is not None:
        correction = Correction(request.tokens)
    else:
        correction = await _encoded(context, chat, await kept.get(owner, conversation_id), request)
    return _entry(await kept.correct(owner, conversation_id, correction, choice=request.choice))


@routes.delete("/{conversation_id}/correction", summary="Remove the correction of an answer")
async def remove_correction(
    conversation_id: ConversationId,
    context: ContextDep,
    caller: CallerDep,
    choice: Annotated[int | None, Query(ge=0, le=2**31 - 1)] = None,
) -> ConversationEntry:
    """The answer counts as it was sampled again."""
    context.refuse_when_stopping()
    return _entry(await context.engine.conversations.correct(caller.user_id, conversation_id, None, choice=choice))


@routes.delete("/{conversation_id}", summary="Delete a conversation", status_code=204)
async def delete_conversation(conversation_id: ConversationId, context: ContextDep, caller: CallerDep) -> None:
    """Delete it with its rewards and corrections. Its file is gone once this is answered."""
    await context.delete_conversation(caller, conversation_id)


async def _encoded(
    context: Context, chat: ChatService, conversation: KeptConversation, request: CorrectionRequest
) -> Correction:
    answer, text = conversation.answer, request.text or ""
    sampled = answer.choices[conversation.choose(request.choice)].tokens
    directory = context.model(answer.base_model).directory
    try:
        return Correction(
            await encode_correction(chat.tokenizers, directory, text, sampled=sampled, owner=answer.owner), text
        )
    except TokenizerBusy as error:
        raise Busy(str(error)) from None
    except TokenizerFailed as error:
        raise BadRequest(str(error)) from None


async def _lines(
    context: Context, caller: Caller, loss: LossName, after: str | None, model: str | None, min_reward: float | None
) -> AsyncIterator[bytes]:
    def encode(some: Sequence[KeptConversation]) -> bytes:
        found = (each.to_json() for one in some for each in datums_of(one, loss, min_reward=min_reward))
        return b"".join(orjson.dumps(line) + b"\n" for line in found)

    waiting: list[KeptConversation] = []
    wanted = True if loss == "importance_sampling" or min_reward is not None else None
    async for conversation in context.engine.conversations.read_all(
        caller.user_id, after=after, model=model, is_rewarded=wanted
    ):
        waiting.append(conversation)
        if len(waiting) == _LINES_AT_ONCE:
            yield await asyncio.to_thread(encode, waiting)
            waiting = []
    if waiting:
        yield await asyncio.to_thread(encode, waiting)


def _place(conversation_id: str | None) -> str | None:
    """It need not be there: it may have been deleted."""
    if conversation_id is not None and not is_conversation_id(conversation_id):
        raise ConversationMissing(conversation_id)
    return conversation_id


def _entry(conversation: KeptConversation) -> ConversationEntry:
    answer = conversation.answer
    return ConversationEntry(
        conversation_id=answer.conversation_id,
        api=answer.api,
        model=answer.model,
        base_model=answer.base_model,
        tinker_path=answer.path,
        weights_digest=answer.weights_digest,
        sampling_session_id=answer.sampler,
        kept_at=conversation.kept_at,
        prompt_tokens=len(answer.prompt_tokens),
        tokens=sum(len(choice.tokens) for choice in answer.choices),
        choices=len(answer.choices),
        feedback=[
            ChoiceFeedback(choice=choice, reward=given.reward, is_corrected=given.correction is not None)
            for choice, given in sorted(conversation.feedback.items())
            if given.reward is not None or given.correction is not None
        ],
        size_bytes=conversation.size_bytes,
    )


def _full(conversation: KeptConversation) -> ConversationResponse:
    answer = conversation.answer
    return ConversationResponse(
        **dict(_entry(conversation)),
        messages=[dict(message) for message in answer.messages],
        tools=[dict(tool) for tool in answer.tools],
        sampling=dict(answer.sampling),
        metadata=dict(answer.metadata),
        prompt=list(answer.prompt_tokens),
        answers=[_answer(conversation, number) for number in range(len(answer.choices))],
    )


def _answer(conversation: KeptConversation, number: int) -> ConversationAnswer:
    choice, given = conversation.answer.choices[number], conversation.feedback_on(number)
    made = given.correction
    return ConversationAnswer(
        message=dict(choice.message),
        finish_reason=choice.finish_reason,
        tokens=list(choice.tokens),
        logprobs=[each if math.isfinite(each) else None for each in choice.logprobs],
        reward=given.reward,
        correction=None if made is None else CorrectionEntry(tokens=list(made.tokens), text=made.text),
    )
