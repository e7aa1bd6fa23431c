"""Sign in with an API key, and sign out. On a server without keys the console opens without signing in."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, HTTPException, Query, Request, Response
from fastapi.responses import JSONResponse, RedirectResponse

from chockstone.api.admission.admission import source_of
from chockstone.api.context import ContextDep
from chockstone.api.users import CallerDep
from chockstone.console.forms import read_form
from chockstone.console.session import BrowserSessions
from chockstone.console.views import ViewsDep

routes = APIRouter()
Next = Annotated[str | None, Query(max_length=2000)]


@routes.get("/sign-in")
async def show(request: Request, context: ContextDep, views: ViewsDep, next: Next = None) -> Response:  # noqa: A002
    target = views.gate.next_page(next)
    if context.is_open:
        return RedirectResponse(target, 303)
    return await views.page(request, "sign_in", next_page=target, problem=None)


@routes.post("/sign-in")
async def sign_in(request: Request, context: ContextDep, views: ViewsDep) -> Response:
    form = await read_form(request)
    target = views.gate.next_page(form.get("next"))
    if context.is_open:
        return RedirectResponse(target, 303)
    key = form.get("key", "").strip()
    response = RedirectResponse(target, 303)
    try:
        _sessions(request).begin(response, key, is_secure=views.gate.is_secure(request))
    except HTTPException as error:
        if key:
            context.refused_keys.record(key, source=source_of(request.scope))
        problem = str(error.detail) if key else "enter an API key: it starts with 'tml-'"
        return await views.page(request, "sign_in", status_code=401, next_page=target, problem=problem)
    return response


@routes.post("/sign-out")
async def sign_out(request: Request, views: ViewsDep) -> Response:
    response = Response(status_code=204, headers={"HX-Redirect": f"{views.gate.base}/sign-in"})
    _sessions(request).end(response, is_secure=views.gate.is_secure(request))
    return response


@routes.get("/session")
async def session(caller: CallerDep) -> Response:
    """Whether the browser is still signed in, for the page's script; the gate refuses it otherwise."""
    return JSONResponse({"user": caller.user_id})


def _sessions(request: Request) -> BrowserSessions:
    sessions: BrowserSessions = request.app.state.sessions
    return sessions
