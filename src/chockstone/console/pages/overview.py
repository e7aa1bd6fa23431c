"""Overview: what runs now, and what needs a person."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from chockstone.api.context import ContextDep
from chockstone.api.users import CallerDep
from chockstone.console.views import ViewsDep

routes = APIRouter()
_NEWEST = 20


@routes.get("")
async def show(request: Request, context: ContextDep, caller: CallerDep, views: ViewsDep) -> Response:
    page = await context.catalog.runs.list(context.scope_of(caller), limit=_NEWEST)
    return await views.page(request, "overview", runs=page.rows, url=context.base_url(request))
