"""Request facts: how log lines and spans name a request. Clients cannot make up any of the names."""

from __future__ import annotations

from typing import Final

from starlette.types import Scope

_PREFIX: Final = "/api/v1"  # some versions of FastAPI leave it out of the template
_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_FORWARDED: Final = "is_forwarded"  # in the scope's state
UNKNOWN: Final = "-"


def method_of(scope: Scope) -> str:
    """All methods that clients made up are one kind."""
    return scope["method"] if scope["method"] in _METHODS else "(other)"


def route_of(scope: Scope) -> str:
    """The route's template, relative to ``/api/v1``. It has no tokens. Known once a route was found.

    A mounted app has no template: the proxy of an API replica, or static files.
    """
    path = getattr(scope.get("route"), "path", None)
    if path is not None:
        return str(path).removeprefix(_PREFIX)
    return "(forwarded)" if "endpoint" in scope else "(none)"


def mark_forwarded(scope: Scope) -> None:
    """Another server answers the request, and reports it if it fails."""
    scope.setdefault("state", {})[_FORWARDED] = True


def is_forwarded(scope: Scope) -> bool:
    return bool(scope.get("state", {}).get(_FORWARDED))


def owner_of(scope: Scope) -> str:
    """The user who sent the request; "-": one without a valid key."""
    caller = scope.get("state", {}).get("caller")
    return UNKNOWN if caller is None else caller.user_id


def client_of(scope: Scope) -> str:
    """The client's address."""
    client = scope.get("client")
    return UNKNOWN if client is None else str(client[0])[:64]


def fields_of(scope: Scope, wanted: bytes) -> list[str]:
    """The values of all header fields of this name, which is in lower case."""
    return [value.decode("latin-1") for name, value in scope["headers"] if name == wanted]
