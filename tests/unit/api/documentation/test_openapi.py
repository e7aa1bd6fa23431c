from __future__ import annotations

import json

import httpx

from chockstone.api.documentation.openapi import OpenApiDocument
from support.served import Served


async def test_the_document_is_built_once_and_needs_no_credential(served: Served) -> None:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(served.app), base_url="http://localhost") as stranger:
        first = await stranger.get("/openapi.json")
        served.app.title = "Another"
        again = await stranger.get("/openapi.json")

    assert first.headers["content-type"] == "application/json"
    assert first.json()["info"]["title"] == "Chockstone"
    assert again.content == first.content


async def test_a_build_that_failed_is_repeated(served: Served) -> None:
    document = OpenApiDocument(served.app)
    served.app.title = None  # type: ignore[assignment]  # what no document can be built from
    served.app.openapi_schema = None
    refused = [error for error in [await _error_of(document)] if error is not None]

    served.app.title = "Chockstone"

    assert len(refused) == 1
    assert json.loads(await document.encoded())["info"]["title"] == "Chockstone"


async def _error_of(document: OpenApiDocument) -> Exception | None:
    try:
        await document.encoded()
    except Exception as error:
        return error
    return None
