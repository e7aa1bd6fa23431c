from __future__ import annotations

from typing import Any

import httpx
import pytest

from chockstone.api.openai.schemas import CHAT_REQUEST, COMPLETION_REQUEST, RESPONSE_REQUEST
from support.openai_answers import refusal_of

ROUTES = {"chat/completions": CHAT_REQUEST, "completions": COMPLETION_REQUEST, "responses": RESPONSE_REQUEST}


@pytest.mark.parametrize("route", ROUTES)
async def test_each_documented_field_is_known(http: httpx.AsyncClient, route: str) -> None:
    schema: dict[str, Any] = ROUTES[route]

    for name in schema["properties"]:
        body = {"model": "tiny", "messages": [{"role": "user", "content": ""}], "prompt": "a", "input": "a"}
        sent = {field: body[field] for field in schema["required"]} | {name: {"never": "right"}}
        answer = await http.post(route, json=sent)
        if answer.status_code != 200:
            assert "does not know" not in refusal_of(answer)["message"] or name == "stream_options"


async def test_the_document_has_the_bodies(http: httpx.AsyncClient) -> None:
    paths = (await http.get("http://localhost/openapi.json")).json()["paths"]

    for route in ROUTES:
        assert paths[f"/v1/{route}"]["post"]["requestBody"]["required"]
        assert f"/oai/api/v1/{route}" not in paths
