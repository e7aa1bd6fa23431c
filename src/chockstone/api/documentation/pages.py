"""Pages: the front page at ``/``, the API viewer at ``/docs`` with its assets, and ``/openapi.json``.

They need no credential and name no user, model or path of the server. Browsers may load nothing from elsewhere.
"""

from __future__ import annotations

import html
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from string import Template
from typing import Final

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

import chockstone
from chockstone.api.admission.browser import PREFIX
from chockstone.api.documentation.openapi import OpenApiDocument

_HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",  # an upgraded server has other assets under the same names
}
_CONSOLE_LINK: Final = f'''<p class="open"><a href="{PREFIX.removeprefix("/")}">Open the console</a></p>'''
_ASSETS: Final = {"viewer.js": "text/javascript", "style.css": "text/css"}


routes = APIRouter(include_in_schema=False)


@dataclass(frozen=True, slots=True)
class Documentation:
    """What the pages of one app show. The app has it as ``app.state.documentation``."""

    document: OpenApiDocument
    public_url: str | None  # the URL that clients use; None: the one that each request was sent to
    has_console: bool = False


@routes.api_route("/", methods=["GET", "HEAD"])
async def front_page(request: Request) -> Response:
    shown: Documentation = request.app.state.documentation
    url = (shown.public_url or str(request.base_url)).rstrip("/")
    headers = {**_HEADERS, "Vary": "Accept"}
    if "text/html" in request.headers.get("accept", ""):
        return Response(_front_page(url, has_console=shown.has_console), media_type="text/html", headers=headers)
    return JSONResponse(describe_server(url, has_console=shown.has_console), headers=headers)


@routes.get("/docs")
async def viewer() -> Response:
    return Response(_asset("viewer.html"), media_type="text/html", headers=_HEADERS)


@routes.get("/openapi.json")
async def openapi(request: Request) -> Response:
    shown: Documentation = request.app.state.documentation
    return Response(await shown.document.encoded(), media_type="application/json")


def describe_server(url: str, *, has_console: bool = False) -> dict[str, object]:
    """What ``/`` tells a program: paths are relative to ``url``, which is the SDK's base URL."""
    return {
        "name": "Chockstone",
        "version": chockstone.__version__,
        "description": "A training server that speaks the Tinker API.",
        "links": {
            **({"console": PREFIX} if has_console else {}),
            "documentation": "/docs",
            "openapi": "/openapi.json",
            "health": "/api/v1/healthz",
            "readiness": "/api/v1/readyz",
            "metrics": "/metrics",
        },
        "sdk": {"install": "pip install tinker", "TINKER_BASE_URL": url, "TINKER_API_KEY": "tml-…, your own key"},
    }


def _front_page(url: str, *, has_console: bool = False) -> str:
    return Template(_asset("front.html").decode()).substitute(
        version=html.escape(chockstone.__version__), url=html.escape(url), console=_CONSOLE_LINK if has_console else ""
    )


def _asset_route(name: str, media_type: str) -> Callable[[], Awaitable[Response]]:
    async def asset() -> Response:
        return Response(_asset(name), media_type=media_type, headers=_HEADERS)

    return asset


for _name, _media_type in _ASSETS.items():
    routes.add_api_route(f"/docs/{_name}", _asset_route(_name, _media_type), methods=["GET"])


@cache
def _asset(name: str) -> bytes:
    return (files("chockstone.api.documentation") / "assets" / name).read_bytes()
