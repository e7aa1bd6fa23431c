from __future__ import annotations

import pytest
from fastapi import HTTPException, Request

from chockstone.console.forms import read_form

FORM = "application/x-www-form-urlencoded"


def make_request(body: bytes, content_type: str = FORM) -> Request:
    async def receive() -> dict[str, object]:
        return {"type": "http.request", "body": body, "more_body": False}

    return Request({"type": "http", "headers": [(b"content-type", content_type.encode())]}, receive)


async def test_fields_are_text_by_name() -> None:
    assert await read_form(make_request(b"a=1&b=%C3%A9+x&empty=")) == {"a": "1", "b": "é x", "empty": ""}


@pytest.mark.parametrize(
    ("body", "content_type", "status"),
    [
        (b"a=%FF", FORM, 400),
        (b"&".join(b"a=1" for _ in range(500)), FORM, 400),
        (b"a=" + b"x" * (2 << 20), FORM, 413),
        (b"{}", "application/json", 415),
        (b"a=1", "text/plain", 415),
        (b"a=1", "", 415),
    ],
)
async def test_what_is_no_form_of_ours_is_refused(body: bytes, content_type: str, status: int) -> None:
    with pytest.raises(HTTPException) as refused:
        await read_form(make_request(body, content_type))

    assert refused.value.status_code == status
