"""Answering: has what a request asks for generated, and sends the answer, whole or in chunks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator
from contextlib import aclosing
from typing import Annotated, Any, Final

import orjson
from fastapi import Path, Request, Response

from chockstone.api.chat.chat_service import ChatService
from chockstone.api.chat.generation import BeforeEnd, Delta, TextGeneration
from chockstone.api.chat.orders import GenerationParameters, Prompt
from chockstone.api.chat.served_model import NamedModel
from chockstone.api.openai.events import DONE, encode_data
from chockstone.api.vendors.error_shapes import error_body
from chockstone.api.vendors.paths import Vendor
from chockstone.engine.conversations import KeptConversation
from chockstone.wire.failures import BadParameter, BadRequest, RequestError

StoredId = Annotated[str, Path(max_length=100, description="the id of the answer")]
PlainJson = dict[str, Any]  # Any: plain JSON
_LARGE_DELTA: Final = 200  # tokens
_MANY_TOKENS: Final = 2000  # of an answer that is encoded beside the event loop


async def generate_all(
    chat: ChatService,
    model: NamedModel,
    prompts: tuple[Prompt, ...],
    parameters: GenerationParameters,
    *,
    before_end: BeforeEnd | None = None,
) -> list[TextGeneration]:
    """To the end. If one fails, the others are cancelled. ``before_end``: of each."""

    async def generate(prompt: Prompt) -> TextGeneration:
        generation = await chat.start(model, prompt, parameters, before_end=before_end)
        async with aclosing(generation):
            await generation.finish()
        return generation

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(generate(prompt)) for prompt in prompts]
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return [task.result() for task in tasks]


async def whole_answer(encode: Callable[[], PlainJson], *, tokens: int) -> Response:
    if tokens > _MANY_TOKENS:
        content = await asyncio.to_thread(lambda: orjson.dumps(encode()))
    else:
        content = orjson.dumps(encode())
    return Response(content, media_type="application/json")


async def shown_answer(show: Callable[[KeptConversation], PlainJson], kept: KeptConversation) -> Response:
    """A stored answer, which may be large."""
    return Response(await asyncio.to_thread(lambda: orjson.dumps(show(kept))), media_type="application/json")


def refuse_query(request: Request, *, known: Collection[str] = ()) -> None:
    """Raises BadParameter for a query parameter of another name."""
    for name in request.query_params:
        if name not in known:
            param = name.removesuffix("[]")[:100]  # as clients write lists
            raise BadParameter(
                f"query parameter {param!r} is not supported for a stored answer; leave it out", param=param
            )


async def stream_chunks(
    generation: TextGeneration,
    chunks: Callable[[Delta], Iterator[PlainJson]],
    usage: Callable[[], PlainJson] | None,
) -> AsyncIterator[bytes]:
    """Chunks of a chat completion or a completion. ``usage`` None: the client did not ask for it."""
    try:
        async for delta in generation:
            if encoded := await encode_delta(delta, lambda delta: map(encode_data, chunks(delta))):
                yield encoded
    except RequestError as error:
        yield encode_data(stream_error(error))
        return
    if usage is not None:
        yield encode_data(usage())
    yield DONE


async def encode_delta(delta: Delta, encode: Callable[[Delta], Iterable[bytes]]) -> bytes:
    """The events of a delta. A large one has log-probabilities of thousands of tokens, each with alternatives."""
    if len(delta.tokens) > _LARGE_DELTA:
        return await asyncio.to_thread(lambda: b"".join(encode(delta)))
    return b"".join(encode(delta))


def stream_error(error: RequestError) -> PlainJson:
    """An error after the status was sent."""
    status = 400 if isinstance(error, BadRequest) else 503
    return error_body(Vendor.OPENAI, status, str(error), code=error.code)
