"""Routes: a router whose answers leave nulls out, as clients expect, and that decodes large JSON in a thread."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.routing import APIRoute

from chockstone.api.bodies import JsonRequest


class _Route(APIRoute):
    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:  # Any: FastAPI's own
        handle = super().get_route_handler()

        async def handle_json(request: Request) -> Response:
            return await handle(JsonRequest(request.scope, request.receive))

        return handle_json


class Routes(APIRouter):
    def __init__(self, **options: Any) -> None:  # Any: FastAPI's own
        super().__init__(**options, route_class=_Route)

    def add_api_route(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:  # Any: FastAPI's own
        super().add_api_route(path, endpoint, **{**options, "response_model_exclude_none": True})
