"""Streamed answers: server-sent events of a generation, which is cancelled when the client leaves."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from chockstone.api.chat.generation import TextGeneration

_HEADERS: Final = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}  # the second one is for nginx


class StreamedAnswer(StreamingResponse):
    """Must be sent: the generation is closed when that has ended, even if ``events`` was never begun."""

    def __init__(self, generation: TextGeneration, events: AsyncIterator[bytes]) -> None:
        super().__init__(events, media_type="text/event-stream", headers=_HEADERS)
        self._generation = generation

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._generation.aclose()
