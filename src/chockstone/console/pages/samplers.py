"""Samplers and workers: the worker's state and memory, the models, and sampling sessions with their load."""

from __future__ import annotations

from typing import Any, Final

from fastapi import APIRouter, Request, Response

from chockstone.api.context import Context, ContextDep
from chockstone.api.operations import samplers as samplers_api
from chockstone.api.operations import server as server_api
from chockstone.api.users import Caller, CallerDep
from chockstone.console.live import LiveDep, Parts
from chockstone.console.views import ViewsDep

routes = APIRouter()
PARTS: Final = ("worker", "samplers")
_SHOWN: Final = 100


@routes.get("/samplers")
async def show(request: Request, context: ContextDep, caller: CallerDep, views: ViewsDep) -> Response:
    return await views.page(request, "samplers", live="/live/samplers", **await load(context, caller))


@routes.get("/live/samplers")
async def follow(request: Request, context: ContextDep, caller: CallerDep, views: ViewsDep, live: LiveDep) -> Response:
    async def render() -> Parts:
        found = await load(context, caller)
        return {name: await views.piece(request, name, **found) for name in PARTS}

    return live.stream(request, caller, render, key="samplers")


async def load(context: Context, caller: Caller) -> dict[str, Any]:  # Any: values of the templates
    found = await samplers_api.list_samplers(context, caller, limit=_SHOWN)
    server = await server_api.server(context, caller)
    return {
        "found": found,
        "has_gaps": found.gap_limit is not None or any(each.gaps for each in found.samplers),
        "worker": server.worker,
        "models": server.models,
        "rate": found.tokens_per_second,
        "server_version": server.version,
        "started_at": server.started_at,
    }
