"""Credentials: where a request has its API key.

Clients of other vendors send ``Authorization: Bearer KEY``, ``X-API-Key: KEY`` or both. On paths of our own API, only
``X-API-Key`` is read: a proxy in front of the server may use ``Authorization`` for itself.
"""

from __future__ import annotations

from typing import Final

from starlette.types import Scope

from chockstone.api.vendors.paths import vendor_of

_NAMES: Final = ("X-API-Key", "Authorization")


def repeated_fields(scope: Scope) -> list[str]:
    """Names of header fields that are read for a credential and that the request has twice."""
    read = _NAMES if vendor_of(scope["path"]) is not None else _NAMES[:1]
    sent = [name for name, _ in scope["headers"]]
    return [name for name in read if sent.count(name.lower().encode()) > 1]


def credentials_of(scope: Scope) -> list[str]:
    """The different credentials of a request. More than one is ambiguous."""
    found = [value.decode("latin-1") for name, value in scope["headers"] if name == b"x-api-key"]
    if vendor_of(scope["path"]) is not None:
        found += [_bearer(value.decode("latin-1")) for name, value in scope["headers"] if name == b"authorization"]
    return list(dict.fromkeys(credential for credential in found if credential))


def _bearer(value: str) -> str:
    """Empty for another scheme."""
    scheme, _, credential = value.strip().partition(" ")
    return credential.strip() if scheme.lower() == "bearer" else ""
