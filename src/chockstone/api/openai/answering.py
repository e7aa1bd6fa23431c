"""Answering: reads the body of a request, has it generated while the client is there, and sends the answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing
from typing import Any, Final, TypeVar

import orjson
from fastapi import Request, Response

from chockstone.api.bodies import off_loop, read_body
from chockstone.api.chat.chat_service import ChatService
from chockstone.api.chat.generation import BeforeEnd, Delta, TextGeneration
from chockstone.api.chat.orders import GenerationParameters, Prompt
from chockstone.api.chat.request_fields import RequestFields, parse_fields
from chockstone.api.chat.served_model import NamedModel
from chockstone.api.openai.events import DONE, encode_data
from chockstone.api.vendors.error_shapes import error_body
from chockstone.api.vendors.paths import Vendor
from chockstone.wire.failures import BadRequest, RequestError

T = TypeVar("T")
PlainJson = dict[str, Any]  # Any: plain JSON
_MANY_TOKENS: Final = 2000  # of an answer that is encoded beside the event loop


async def read_request(request: Request, read: Callable[[RequestFields], T]) -> T:
    """Reads large bodies beside the event loop. Raises BadRequest for what is wrong, by name."""
    body = await read_body(request)
    return await off_loop(lambda: read(parse_fields(body)), size_bytes=len(body))


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


async def stream_chunks(
    generation: TextGeneration,
    chunks: Callable[[Delta], Iterator[PlainJson]],
    usage: Callable[[], PlainJson] | None,
) -> AsyncIterator[bytes]:
    """Chunks of a chat completion or a completion. ``usage`` None: the client did not ask for it."""
    try:
        async for delta in generation:
            for chunk in chunks(delta):
                yield encode_data(chunk)
    except RequestError as error:
        yield encode_data(stream_error(error))
        return
    if usage is not None:
        yield encode_data(usage())
    yield DONE


def stream_error(error: RequestError) -> PlainJson:
    """An error after the status was sent."""
    status = 400 if isinstance(error, BadRequest) else 503
    return error_body(Vendor.OPENAI, status, str(error), code=error.code)
