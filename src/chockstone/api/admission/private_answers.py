"""Private answers: what a caller with a credential gets is kept by no cache, unless the route says otherwise.

Caches do not know that ``X-API-Key`` is a credential: a proxy could give the answer to the next caller who asks.
"""

from __future__ import annotations

from typing import Final

from starlette.types import Message, Send

_NAME: Final = b"cache-control"
_NO_STORE: Final = (_NAME, b"no-store")


def kept_private(send: Send) -> Send:
    """ASGI's send, which adds the header field to an answer that has none."""

    async def send_private(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = message.get("headers", ())
            if not any(name.lower() == _NAME for name, _ in headers):
                message = {**message, "headers": [*headers, _NO_STORE]}
        await send(message)

    return send_private
