"""Bodies: what a client sent, read within limits, and decoded off the event loop when it is large."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final, TypeVar

import orjson
from fastapi import HTTPException, Request

from chockstone.wire.compression import decompress
from chockstone.wire.failures import BadRequest

T = TypeVar("T")
_LARGE_BYTES: Final = 64 << 10  # decoding less takes less time than changing threads


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
