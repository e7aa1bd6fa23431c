"""Admission: middleware that refuses requests by their header fields, before any route sees them.

It checks, in this order: malformed or ambiguous header fields (400), foreign host names on a server without keys
(421, 403), callers without a valid credential (401). Bodies of admitted requests are read within the limits of
``uploads``. The credential of the web console is a cookie, which the console checks; on every other path it is a key:
in ``X-API-Key``, or, on the paths of other vendors' APIs, in ``Authorization``, too.
"""

from __future__ import annotations

import re
from typing import Final, Protocol

from fastapi import HTTPException
from starlette.types import ASGIApp, Receive, Scope, Send

from chockstone.api.admission.browser import BrowserPages, is_page, json_refusal
from chockstone.api.admission.hosts import Hosts, name_of
from chockstone.api.admission.private_answers import kept_private
from chockstone.api.admission.protocol import recognize_connection
from chockstone.api.admission.refusals import RefusedKeys
from chockstone.api.admission.uploads import UPLOAD, Uploads
from chockstone.api.users import Caller
from chockstone.api.vendors.credentials import credentials_of, repeated_fields
from chockstone.api.vendors.paths import vendor_of

_PLACEHOLDER: Final = "tml-placeholder"  # clients of local servers of other vendors send keys such as "none"
_OURS: Final = re.compile(r"tml-|eyJ")  # how keys and tokens of this server begin
_PUBLIC: Final = re.compile(  # needs no credential; every other path does, also one that does not exist
    r"/|/metrics|/docs|/docs/(viewer\.js|style\.css)|/openapi\.json|/api/v1/(healthz|readyz)"
    r"|/api/v1/(downloads|traces|uploads)/[^/]+/[^/]+"  # the URL is signed
)


class CallerLookup(Protocol):
    """Identifies callers by their credential."""

    @property
    def is_open(self) -> bool:
        """Whether the server has no keys, so that it accepts any."""
        ...

    async def identify(self, credential: str | None) -> Caller:
        """Raises HTTPException 401 for an unknown credential."""
        ...


class AdmissionMiddleware:
    def __init__(
        self,
        app: ASGIApp,
        *,
        callers: CallerLookup,
        hosts: Hosts,
        uploads: Uploads,
        refused: RefusedKeys,
        pages: BrowserPages | None = None,
    ) -> None:
        """``pages`` None: there is no web console."""
        self._app = app
        self._callers = callers
        self._hosts = hosts
        self._uploads = uploads
        self._refused = refused
        self._pages = pages

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            self._check_fields(scope)
            caller = await self._caller(scope)
            upload = self._uploads.begin(scope, receive, caller=None if caller is None else caller.user_id)
        except HTTPException as error:
            await self._refusal(scope, error)(scope, receive, send)
            return
        scope.setdefault("state", {})[UPLOAD] = upload
        try:
            await self._app(scope, upload.receive, send if caller is None else kept_private(send))
        finally:
            upload.close()

    def _check_fields(self, scope: Scope) -> None:
        if scope["http_version"] not in ("1.0", "1.1"):
            raise HTTPException(400, f"HTTP/{scope['http_version']} is not spoken here; use HTTP/1.1")
        hosts = _fields(scope, b"host")
        if len(hosts) != 1 or name_of(hosts[0]) is None:
            raise HTTPException(400, "a request needs one Host field with a host name or address in it")
        for name in repeated_fields(scope):
            raise HTTPException(400, f"there is more than one {name}; send one")
        if len(credentials_of(scope)) > 1:
            raise HTTPException(
                400,
                "X-API-Key and Authorization hold different keys; send one key (the anthropic SDK takes them from "
                "ANTHROPIC_API_KEY and ANTHROPIC_AUTH_TOKEN: unset one of these)",
            )
        if not self._callers.is_open:
            return
        if not self._hosts.allows(hosts[0]):
            raise HTTPException(
                421,
                f"this server has no API keys, so it answers only to localhost and loopback addresses, not to "
                f"{hosts[0]!r}; make a key with `chockstone keys create USER` to use other names",
            )
        for origin in _fields(scope, b"origin"):
            if not self._hosts.allows_origin(origin):
                raise HTTPException(403, f"web pages of {origin[:300]!r} may not use this server: it has no API keys")

    async def _caller(self, scope: Scope) -> Caller | None:
        if _PUBLIC.fullmatch(scope["path"]):
            return None
        if self._pages is not None and is_page(scope["path"]):
            caller = self._pages.admit(scope)
        else:
            caller = await self._caller_by_key(scope)
        if caller is not None:
            scope.setdefault("state", {})["caller"] = caller
            recognize_connection(scope)
        return caller

    async def _caller_by_key(self, scope: Scope) -> Caller:
        credential = next(iter(credentials_of(scope)), None)
        if vendor_of(scope["path"]) is not None:
            if credential is None:
                raise HTTPException(401, "no credential: give the client a key of this server (tml-...) as its API key")
            if self._callers.is_open and not _OURS.match(credential):
                credential = _PLACEHOLDER
        try:
            return await self._callers.identify(credential)
        except HTTPException as error:
            if error.status_code == 401 and credential:
                self._refused.record(credential, source=source_of(scope))
            raise

    def _refusal(self, scope: Scope, error: HTTPException) -> ASGIApp:
        if self._pages is not None and is_page(scope["path"]):
            return self._pages.refusal(error)
        return json_refusal(error)


def _fields(scope: Scope, wanted: bytes) -> list[str]:
    return [value.decode("latin-1") for name, value in scope["headers"] if name == wanted]


def source_of(scope: Scope) -> str:
    """The client's address, or the one that a proxy on this machine forwards."""
    client = scope.get("client")
    return str(client[0]) if client else "unknown"
