"""The OpenAPI document as bytes, built once and off the event loop."""

from __future__ import annotations

import asyncio
from typing import Final

import orjson
from fastapi import FastAPI

DESCRIPTION: Final = (
    "A training server that speaks the Tinker API. Most people use it through the Tinker SDK. Send an API key "
    "(`tml-…`) in the header field `X-API-Key`. A server without API keys accepts any key that starts with `tml-`."
)


class OpenApiDocument:
    """The first caller has it built in a thread, because building takes longer than the event loop may be held."""

    def __init__(self, app: FastAPI) -> None:
        self._app = app
        self._building: asyncio.Task[bytes] | None = None

    async def encoded(self) -> bytes:
        if self._building is None or (self._building.done() and self._building.exception() is not None):
            self._building = asyncio.create_task(asyncio.to_thread(self._build))
        return await asyncio.shield(self._building)  # the build continues when this caller disconnects

    def _build(self) -> bytes:
        return orjson.dumps(self._app.openapi())
