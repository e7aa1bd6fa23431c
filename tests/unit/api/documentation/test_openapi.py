from __future__ import annotations

import json

import httpx

from chockstone.api.app import RESOURCES
from chockstone.api.documentation.openapi import OpenApiDocument
from chockstone.api.operations import metrics
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


def test_every_route_has_a_summary_in_plain_words() -> None:
    routes = [route for resource in (*RESOURCES, metrics) for route in resource.routes.routes]
    shown = {f"{route.methods} {route.path}": route.summary for route in routes if route.include_in_schema}

    assert len(shown) > 60
    assert not [name for name, summary in shown.items() if summary is None], "FastAPI would show a function's name"
    assert all(summary[0].isupper() and not summary.endswith(".") for summary in shown.values())
