"""Bodies: reads request bodies within limits, and decodes large ones in a thread."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any, Final, TypeVar

import orjson
from fastapi import HTTPException, Request

from chockstone.api.admission.uploads import UPLOAD, RequestUpload
from chockstone.wire.codecs.compression import decompress, unpacked_bytes
from chockstone.wire.failures import BadRequest

T = TypeVar("T")
_MOST_CONTAINERS: Final = 200_000  # lists and objects in one body of JSON
_LARGE_BYTES: Final = 64 << 10  # decoding less takes less time than changing threads


class JsonRequest(Request):
    """Decodes large JSON in a thread, and refuses JSON that would take long to decode."""

    async def json(self) -> Any:  # Any: whatever was sent
        body = await self.body()
        refuse_many_containers(body)
        return await off_loop(lambda: json.loads(body), size_bytes=len(body))


def refuse_many_containers(body: bytes) -> None:
    """Decoding holds the interpreter for half a microsecond per list or object, so their number is limited.

    Brackets in strings count, too; no client comes near the limit.
    """
    if len(body) > _MOST_CONTAINERS and body.count(b"[") + body.count(b"{") > _MOST_CONTAINERS:
        raise HTTPException(413, f"the body has more than {_MOST_CONTAINERS} lists and objects; send less at a time")


async def read_body(request: Request, *, max_bytes: int | None = None) -> bytes:
    """The body, decompressed if necessary. The unpacked bytes count as held by the caller.

    ``max_bytes``: of a body that is decompressed, if that is less than the limit of the server.
    """
    body = await request.body()
    encoding = request.headers.get("content-encoding", "identity").lower()
    if encoding == "identity":
        return body
    if encoding != "zstd":
        raise HTTPException(415, f"Content-Encoding {encoding!r} is not understood; send 'zstd' or none")
    limit: int = request.app.state.context.config.max_body_bytes
    limit = limit if max_bytes is None else min(limit, max_bytes)
    upload: RequestUpload = getattr(request.state, UPLOAD)
    upload.hold(unpacked_bytes(body, limit))
    return await off_loop(lambda: decompress(body, limit), size_bytes=_LARGE_BYTES)


def parse_object(body: bytes) -> dict[str, Any]:
    refuse_many_containers(body)
    try:
        parsed = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise BadRequest(f"the body is not JSON: {error}") from None
    if not isinstance(parsed, dict):
        raise BadRequest("the body must be a JSON object")
    return parsed


async def off_loop(decode: Callable[[], T], *, size_bytes: int) -> T:
    """Run ``decode`` in a thread if the input is large, else on the event loop."""
    return await asyncio.to_thread(decode) if size_bytes >= _LARGE_BYTES else decode()
