"""Views: renders templates, in a thread, with what every page needs around them."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Mapping
from importlib.resources import files
from typing import Annotated, Any, Final

from fastapi import Depends, HTTPException, Request
from fastapi.responses import HTMLResponse
from jinja2 import Environment, FileSystemLoader, StrictUndefined

import chockstone
from chockstone.api.context import Context
from chockstone.api.users import LOCAL_USER
from chockstone.console.formatting import FILTERS
from chockstone.console.gate import Gate, session_of
from chockstone.console.navigation import visible_groups
from chockstone.console.recent_points import RecentPoints
from chockstone.console.sparklines import Sparklines
from chockstone.console.static_files import StaticFiles

Values = Any  # what a template shows: frozen dataclasses, and lists of them


class Views:
    def __init__(self, context: Context, gate: Gate, static: StaticFiles) -> None:
        self.gate = gate
        self.sparklines = Sparklines(context.engine.history)
        self.recent_points = RecentPoints(context.engine.history)
        self._context = context
        self._environment = Environment(
            loader=FileSystemLoader(str(files("chockstone.console") / "templates")),
            autoescape=True,  # every template, whatever its name
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            auto_reload=False,
            extensions=["jinja2.ext.do"],
        )
        self._environment.filters.update(FILTERS)
        base = gate.base
        self._environment.globals.update(
            base=base,
            static=lambda name: base + static.path(name),
            version=chockstone.__version__,
        )

    async def page(
        self, request: Request, name: str, *, status_code: int = 200, live: str | None = None, **values: Values
    ) -> HTMLResponse:
        """A whole page: ``templates/NAME.html``. ``live``: the path of its event stream, below the console."""
        around = {**self._around(request, name), "live": live}
        return HTMLResponse(await self._render(f"{name}.html", {**around, **values}), status_code)

    async def part(self, request: Request, name: str, **values: Values) -> HTMLResponse:
        """A piece of a page, which htmx puts in its place: ``templates/parts/NAME.html``."""
        return HTMLResponse(await self.piece(request, name, **values))

    async def piece(self, request: Request, name: str, **values: Values) -> str:
        """The text of a part, for event streams."""
        return await self._render(f"parts/{name}.html", {**self._around(request, ""), **values})

    async def _render(self, template: str, values: Mapping[str, Values]) -> str:
        return await asyncio.to_thread(functools.partial(self._render_now, template, values))

    def _render_now(self, template: str, values: Mapping[str, Values]) -> str:
        return self._environment.get_template(template).render(values)

    def _around(self, request: Request, name: str) -> dict[str, Values]:
        session = session_of(request)
        is_admin = session is not None and self._context.is_admin(session.caller)
        return {
            "page": name,
            "user": LOCAL_USER if session is None else session.caller.user_id,
            "is_admin": is_admin,
            "is_known": session is not None,
            "is_signed_in": session is not None and session.is_signed_in,
            "token": "" if session is None else session.token,
            "navigation": visible_groups(is_admin=is_admin),
            "live": None,
        }


def _views(request: Request) -> Views:
    views: Views = request.app.state.views
    return views


def _require_admin(request: Request) -> None:
    session, context = session_of(request), request.app.state.context
    if session is None or not context.is_admin(session.caller):
        raise HTTPException(403, "this page is for admins of the server; ask its operator")


ViewsDep = Annotated[Views, Depends(_views)]
AdminOnly: Final = Depends(_require_admin)
