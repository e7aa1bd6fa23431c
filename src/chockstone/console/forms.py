"""Forms: what a page's form or htmx sent, as text by name, within limits."""

from __future__ import annotations

from typing import Final
from urllib.parse import parse_qsl

from fastapi import HTTPException, Request

_TYPE: Final = "application/x-www-form-urlencoded"
_MOST_BYTES: Final = 1 << 20
_MOST_FIELDS: Final = 200


async def read_form(request: Request) -> dict[str, str]:
    """The fields of a form. Of fields with the same name the last one counts. Raises HTTPException 400, 413 or 415."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != _TYPE:
        raise HTTPException(415, f"a form of this console is sent as {_TYPE}")
    body = b""
    async for piece in request.stream():
        body += piece
        if len(body) > _MOST_BYTES:
            raise HTTPException(413, f"a form of this console has at most {_MOST_BYTES} bytes; send less")
    try:
        return dict(parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=_MOST_FIELDS, errors="strict"))
    except ValueError:  # not UTF-8, or too many fields
        raise HTTPException(400, "the form cannot be read; reload the page and try again") from None
