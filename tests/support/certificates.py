"""Certificates of public authorities, which httpx loads for every client: that takes 15 ms, and no test needs them."""

from __future__ import annotations

import os
import ssl
from functools import cache
from typing import Any, Final

import httpx
from httpx._transports import default as transports

_make: Final = httpx.create_ssl_context
_VARIABLES: Final = ("SSL_CERT_FILE", "SSL_CERT_DIR")


def share_certificates() -> None:
    """From now on the clients of this process and of its forks share them, unless a client names its own."""
    _shared(None)
    _shared((None,) * len(_VARIABLES))
    transports.create_ssl_context = _create_ssl_context  # type: ignore[assignment]  # the same arguments


def _create_ssl_context(verify: Any = True, cert: Any = None, trust_env: bool = True) -> ssl.SSLContext:
    if verify is not True or cert is not None:
        return _make(verify=verify, cert=cert, trust_env=trust_env)
    return _shared(tuple(map(os.environ.get, _VARIABLES)) if trust_env else None)


@cache
def _shared(environment: tuple[str | None, ...] | None) -> ssl.SSLContext:
    """``environment``: values of ``_VARIABLES``; None: they do not count."""
    return _make(trust_env=environment is not None)
