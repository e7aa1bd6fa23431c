"""Routes: a router whose answers leave nulls out, which is how clients expect what is absent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastapi import APIRouter


class Routes(APIRouter):
    def add_api_route(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:  # Any: FastAPI's own
        super().add_api_route(path, endpoint, **{**options, "response_model_exclude_none": True})
