"""Samplers and workers: the worker's state and memory, the models, and sampling sessions with their load."""

from __future__ import annotations

from typing import Any, Final

from fastapi import APIRouter, Request, Response

from chockstone.api.context import Context, ContextDep
from chockstone.api.operations import samplers as samplers_api
from chockstone.api.operations import server as server_api
from chockstone.api.users import Caller, CallerDep
from chockstone.console.views import ViewsDep

routes = APIRouter(prefix="/samplers")
_SHOWN: Final = 100


@routes.get("")
async def show(request: Request, context: ContextDep, caller: CallerDep, views: ViewsDep) -> Response:
    return await views.page(request, "samplers", **await load(context, caller))


async def load(context: Context, caller: Caller) -> dict[str, Any]:  # Any: values of the templates
    found = await samplers_api.list_samplers(context, caller, limit=_SHOWN)
    server = await server_api.server(context, caller)
    return {
        "found": found,
        "worker": server.worker,
        "models": server.models,
        "rate": found.tokens_per_second,
        "server_version": server.version,
        "started_at": server.started_at,
        "replicas": (),
    }
