"""Bodies: what a client sent, read within limits, and decoded off the event loop when it is large."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final, TypeVar

import orjson
from fastapi import HTTPException, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from chockstone.wire.compression import decompress
from chockstone.wire.failures import BadRequest

T = TypeVar("T")
_LARGE_BYTES: Final = 64 << 10  # decoding less takes less time than changing threads


_SMALL_BYTES: Final = 8 << 20  # is parsed on the event loop, and before the caller is known
_LARGE_ROUTES: Final = ("/forward_backward", "/forward", "/asample")
_AT_ONCE: Final = 4  # bodies of the largest size that may be on their way in together


class BodyLimit:
    """Middleware: a body larger than the limit is refused while it is read, and so is one too many at a time.

    The limit is for bodies of tensors and prompts; others are small.
    """

    def __init__(self, app: ASGIApp, *, limit_bytes: int) -> None:
        self._app = app
        self._limit = limit_bytes
        self._held = 0  # bytes of requests that were not answered yet

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        received = 0
        limit = self._limit if scope["path"].endswith(_LARGE_ROUTES) else min(self._limit, _SMALL_BYTES)

        async def limited() -> Message:
            nonlocal received
            message = await receive()
            size = len(message.get("body", b""))
            received += size
            self._held += size
            if received > limit:
                raise HTTPException(413, f"the request body is larger than {limit} bytes; send less at a time")
            if self._held > _AT_ONCE * self._limit:
                raise HTTPException(429, "too many request bodies arrive at once; send it again", {"Retry-After": "1"})
            return message

        try:
            await self._app(scope, limited, send)
        finally:
            self._held -= received


async def read_body(request: Request) -> bytes:
    """The body, decompressed if the client compressed it."""
    body = await request.body()
    encoding = request.headers.get("content-encoding", "identity").lower()
    if encoding == "identity":
        return body
    if encoding != "zstd":
        raise HTTPException(415, f"Content-Encoding {encoding!r} is not understood; send 'zstd' or none")
    limit = request.app.state.context.config.max_body_bytes
    return await off_loop(lambda: decompress(body, limit), size_bytes=_LARGE_BYTES)


def parse_object(body: bytes) -> dict[str, Any]:
    try:
        parsed = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise BadRequest(f"the body is not JSON: {error}") from None
    if not isinstance(parsed, dict):
        raise BadRequest("the body must be a JSON object")
    return parsed


async def off_loop(decode: Callable[[], T], *, size_bytes: int) -> T:
    """Run ``decode`` here if it is short work, in a thread if not."""
    return await asyncio.to_thread(decode) if size_bytes >= _LARGE_BYTES else decode()
