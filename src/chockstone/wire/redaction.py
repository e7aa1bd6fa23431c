"""Redaction: removes credentials from anything that may be logged.

Clients put whole request headers into their telemetry. Removed are the values of fields that are named like a
credential and, in every text, anything that looks like a key, a JWT or such a field.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

REDACTED: Final = "[redacted]"
MAX_DEPTH: Final = 50

_FIELD: Final = r"(?:api[-_]?key|authorization|cookie|jwt|secret|password|access[-_]token)"
_NAMES_A_CREDENTIAL: Final = re.compile(rf".*{_FIELD}", re.IGNORECASE | re.DOTALL)
_CREDENTIAL: Final = re.compile(r"tml-[\w.~+/=-]*|eyJ[\w-]+(?:\.[\w-]*){0,2}")
_FIELD_IN_TEXT: Final = re.compile(
    rf"(?P<name>{_FIELD}(?:\\*['\"])?\s*[:=,]\s*)(?P<quote>\\*['\"])?(?:(?:Bearer|Basic)\s+)?[^\s'\",;}})\]\\]+",
    re.IGNORECASE,
)
_URL_PASSWORD: Final = re.compile(r"(://[^:/?#@]*:).*@", re.DOTALL)  # to the last @: one in a password may be unquoted
_QUERY_PASSWORD: Final = re.compile(r"((?:[?&]|^)\w*password=)[^&#]*", re.IGNORECASE)


def redact(value: Any) -> Any:
    """A copy of a JSON value without credentials. Depths beyond 50 are left out."""
    return _redact(value, 0)


def redact_text(text: str) -> str:
    """``text`` without credentials, and fit to be written: half a surrogate pair becomes a question mark."""
    text = text.encode(errors="replace").decode()
    text = _FIELD_IN_TEXT.sub(lambda found: f"{found['name']}{found['quote'] or ''}{REDACTED}", text)
    return _CREDENTIAL.sub(REDACTED, text)


def redact_url(url: str) -> str:
    """``url`` without its password, wherever it stands and however badly it is written."""
    return _QUERY_PASSWORD.sub(r"\1***", _URL_PASSWORD.sub(r"\1***@", url))


def names_a_credential(name: str) -> bool:
    return _NAMES_A_CREDENTIAL.fullmatch(name) is not None


def _redact(value: Any, depth: int) -> Any:
    match value:
        case str():
            return redact_text(value)
        case Mapping() | list() | tuple() if depth == MAX_DEPTH:
            return REDACTED
        case Mapping():
            return {
                redact_text(str(name)): REDACTED if names_a_credential(str(name)) else _redact(inner, depth + 1)
                for name, inner in value.items()
            }
        case list() | tuple():
            return [_redact(inner, depth + 1) for inner in value]
        case _:
            return value
