"""The gate: decides by the header fields of a request whether the console answers it, before any body is read.

A page needs the cookie of a session. Another site may link to a page and load nothing else: a server without keys asks
for no cookie, so such a site could hold all of its event streams. A change also needs to come from a page of the
console itself: by the browser's word (``Sec-Fetch-Site``, ``Origin``) and by the token of the session.
"""

from __future__ import annotations

import hmac
from typing import Final
from urllib.parse import quote, urlsplit

from fastapi import HTTPException, Request, Response
from fastapi.responses import HTMLResponse, JSONResponse, RedirectResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from chockstone.api.admission.browser import PREFIX
from chockstone.api.users import Caller
from chockstone.console.session import TOKEN_HEADER, BrowserSession, BrowserSessions

SIGN_IN: Final = f"{PREFIX}/sign-in"
STATIC: Final = f"{PREFIX}/static/"
SESSION: Final = "console_session"  # in the scope's state
_READS: Final = frozenset({"GET", "HEAD"})
_SECURITY_HEADERS: Final = {
    b"content-security-policy": (
        b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        b"font-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    b"x-content-type-options": b"nosniff",
    b"x-frame-options": b"DENY",
    b"referrer-policy": b"same-origin",  # with no-referrer, browsers send ``Origin: null``
    b"cross-origin-opener-policy": b"same-origin",
    b"cross-origin-resource-policy": b"same-origin",
    b"permissions-policy": b"camera=(), geolocation=(), microphone=()",
}
# The cookie is not sent when another site leads here, so the page asks for itself once more.
_AGAIN: Final = (
    '<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="0"><link rel="icon" href="data:,">'
    "<title>Chockstone</title>"
)


class Gate:
    """``public_url``: the URL that browsers use; None: the one that each request was sent to."""

    def __init__(self, sessions: BrowserSessions, *, public_url: str | None) -> None:
        self._sessions = sessions
        self._public = None if public_url is None else urlsplit(public_url)
        self.base = base_path(public_url)

    def admit(self, scope: Scope) -> Caller | None:
        """The signed-in user; None on a page that needs none. Raises HTTPException."""
        path, is_change = scope["path"], scope["method"] not in _READS
        if path.startswith(STATIC):
            return None
        if not is_change and _is_foreign_read(scope):
            raise HTTPException(403, "pages of another site may link to this console, and not load anything from it")
        if is_change and not self._is_own_page(scope):
            raise HTTPException(403, "the request did not come from a page of this console; open the console itself")
        if path == SIGN_IN:
            return None
        session = self._sessions.find(header_values(scope, b"cookie"))
        if session is None:
            raise HTTPException(401, "sign in to the console with an API key: the session has ended or never began")
        if is_change and not _has_token(scope, session):
            raise HTTPException(403, "the page is older than your session; reload it and try again")
        scope.setdefault("state", {})[SESSION] = session
        return session.caller

    def is_secure(self, request: Request) -> bool:
        """Whether browsers reach the console by https."""
        return request.url.scheme == "https" or (self._public is not None and self._public.scheme == "https")

    def is_current(self, request: Request) -> bool:
        """Whether the session of an open stream still holds: its key may be revoked meanwhile."""
        return self._sessions.find(header_values(request.scope, b"cookie")) is not None

    def next_page(self, wanted: str | None) -> str:
        """Where to go after signing in: a page of this console, whatever the URL says."""
        is_ours = wanted is not None and (wanted == self.base or wanted.startswith(f"{self.base}/"))
        is_plain = wanted is not None and wanted.isascii() and wanted.isprintable() and "\\" not in wanted
        return wanted if wanted is not None and is_ours and is_plain else self.base

    def send_to_sign_in(self, scope: Scope) -> Response | None:
        """For a person's browser without a session; None for other requests."""
        target = f"{self.base}/sign-in"
        if header_values(scope, b"hx-request"):
            return JSONResponse({"detail": "your session has ended"}, 401, {"HX-Redirect": target})
        if scope["method"] not in _READS or not wants_page(scope):
            return None
        if header_values(scope, b"sec-fetch-site") == ["cross-site"]:
            return HTMLResponse(_AGAIN)
        query = scope["query_string"].decode("latin-1")
        wanted = self.base + scope["path"].removeprefix(PREFIX) + (f"?{query}" if query else "")
        return RedirectResponse(f"{target}?next={quote(wanted, safe='')}" if wanted != self.base else target, 303)

    def _is_own_page(self, scope: Scope) -> bool:
        sites, origins = header_values(scope, b"sec-fetch-site"), header_values(scope, b"origin")
        if sites not in ([], ["same-origin"]) or len(origins) > 1:
            return False
        if not origins:
            return bool(sites)
        hosts = {header_values(scope, b"host")[0].lower()} | ({self._public.netloc.lower()} if self._public else set())
        try:
            return urlsplit(origins[0]).netloc.lower() in hosts
        except ValueError:
            return False


class SecurityHeaders:
    """ASGI middleware: the header fields that keep pages from loading, framing or leaking anything foreign."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": secured(message["headers"])}
            await send(message)

        await self._app(scope, receive, send_with_headers)


def secured(headers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """The header fields of an answer with the security fields. What is not said to be cacheable is not kept."""
    names = {name.lower() for name, _ in headers}
    kept = [] if b"cache-control" in names else [(b"cache-control", b"no-store")]
    return [*headers, *_SECURITY_HEADERS.items(), *kept]


def base_path(public_url: str | None) -> str:
    """The console's path as browsers see it: a proxy may serve the API below a path of its own."""
    return ("" if public_url is None else urlsplit(public_url).path.rstrip("/")) + PREFIX


def session_of(request: Request) -> BrowserSession | None:
    """The session that the gate found; None on a page that needs none."""
    session: BrowserSession | None = getattr(request.state, SESSION, None)
    return session


def wants_page(scope: Scope) -> bool:
    return any("text/html" in each for each in header_values(scope, b"accept"))


def header_values(scope: Scope, wanted: bytes) -> list[str]:
    return [value.decode("latin-1") for name, value in scope["headers"] if name == wanted]


def _is_foreign_read(scope: Scope) -> bool:
    """Whether a page of another site loads this, other than by a link. Browsers say so to https and to loopback."""
    is_foreign = any(site in ("cross-site", "same-site") for site in header_values(scope, b"sec-fetch-site"))
    is_link = header_values(scope, b"sec-fetch-mode") == ["navigate"]
    return is_foreign and not (is_link and header_values(scope, b"sec-fetch-dest") == ["document"])


def _has_token(scope: Scope, session: BrowserSession) -> bool:
    given = header_values(scope, TOKEN_HEADER.encode())
    return len(given) == 1 and hmac.compare_digest(given[0].encode("latin-1"), session.token.encode())
