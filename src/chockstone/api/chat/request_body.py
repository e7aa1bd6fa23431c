"""Request bodies: reads the fields of a body beside the event loop, within the limits of what a prompt can be."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, TypeVar

from fastapi import HTTPException, Request

from chockstone.api.bodies import read_body
from chockstone.api.chat.request_fields import RequestFields, parse_fields

T = TypeVar("T")
MAX_BYTES: Final = 16 << 20  # a prompt has four million characters at most
MAX_VALUES: Final = 1_000_000  # tokens of a prompt; decoding holds the interpreter, and so the event loop
MAX_KEYS: Final = 100_000  # names of fields, which take longer
_BLANKS: Final = b" \t\r\n"  # JSON has them between a name and its colon, too
_LARGE_BYTES: Final = 8 << 10  # a body of many small messages takes a millisecond for each kilobyte


async def read_request(request: Request, read: Callable[[RequestFields], T]) -> T:
    """Raises BadRequest for what is wrong, by name."""
    body = await read_body(request, max_bytes=MAX_BYTES)
    if len(body) > MAX_BYTES:
        raise HTTPException(413, f"the body has {len(body)} bytes; a conversation has at most {MAX_BYTES}")

    def read_all() -> T:
        _refuse_many_values(body)
        return read(parse_fields(body))

    return await asyncio.to_thread(read_all) if len(body) > _LARGE_BYTES else read_all()


def _refuse_many_values(body: bytes) -> None:
    """Marks in texts count, too; no conversation comes near the limits."""
    if _has_more(body, b",", MAX_VALUES):
        raise HTTPException(413, f"the body has more than {MAX_VALUES} values; send less at a time")
    if _has_more(body, b":", MAX_KEYS) and _has_more(body.translate(None, _BLANKS), b'":', MAX_KEYS):
        raise HTTPException(413, f"the body has more than {MAX_KEYS} fields; send less at a time")


def _has_more(body: bytes, mark: bytes, most: int) -> bool:
    return len(body) > most and body.count(mark) > most
