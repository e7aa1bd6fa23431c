"""Signing: words that the server gives away and believes when they come back, until they expire.

A token is ``<payload>.<mac>``, both base64url without padding. The MAC is over the payload's text and
is itself compared as text, so a token has one spelling: nothing is decoded that was not signed.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from fastapi import HTTPException

_PURPOSE: Final = b"chockstone: signed downloads, 1"  # tokens of other kinds are signed with other keys
_EXPIRY: Final = "exp"


class ForeignToken(HTTPException):
    def __init__(self) -> None:
        super().__init__(403, "the URL was not signed by this server, or was changed since; ask for a new one")


class ExpiredToken(HTTPException):
    def __init__(self, expired_at: int) -> None:
        at = datetime.fromtimestamp(expired_at, UTC)
        super().__init__(410, f"the URL expired at {at:%Y-%m-%d %H:%M:%S} UTC; ask for a new one")


class Signer:
    def __init__(self, secret: bytes) -> None:
        self._key = hmac.digest(secret, _PURPOSE, hashlib.sha256)

    def sign(self, payload: Mapping[str, Any], *, expires_at: datetime) -> str:  # Any: plain JSON
        """Expects JSON values only. Times are kept in whole seconds, so a token ends up to one second early."""
        document = {**payload, _EXPIRY: int(expires_at.timestamp())}
        text = json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False)
        signed = _encode(text.encode())
        return f"{signed}.{self._mac(signed)}"

    def read(self, token: str, *, now: datetime) -> dict[str, Any]:  # Any: plain JSON
        """What was signed, the expiry under ``exp`` included. Raises ForeignToken or ExpiredToken."""
        signed, _, mac = token.partition(".")
        expected = self._mac(signed).encode()
        if not hmac.compare_digest(mac.encode(errors="replace"), expected):
            raise ForeignToken
        payload: dict[str, Any] = json.loads(base64.urlsafe_b64decode(signed + "=" * (-len(signed) % 4)))
        if now.timestamp() >= payload[_EXPIRY]:
            raise ExpiredToken(payload[_EXPIRY])
        return payload

    def _mac(self, signed: str) -> str:
        return _encode(hmac.digest(self._key, signed.encode(errors="replace"), hashlib.sha256))


def _encode(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode("ascii")
