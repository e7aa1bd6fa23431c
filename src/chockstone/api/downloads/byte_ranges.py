"""Byte ranges: which part of a representation a request asks for (RFC 9110, sections 13 and 14).

One range at a time. A request for several ranges, or a malformed one, gets the whole, as the RFC allows.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

_ONE_RANGE: Final = re.compile(r"bytes=[ \t]*([0-9]{0,4000})-([0-9]{0,4000})[ \t]*\Z", re.IGNORECASE)


class RangeUnsatisfiable(Exception):
    """The range begins after the end."""


@dataclass(frozen=True, slots=True)
class ByteRange:
    start: int
    size: int

    def content_range(self, whole_bytes: int) -> str:
        return f"bytes {self.start}-{self.start + self.size - 1}/{whole_bytes}"


def asked_range(headers: Mapping[str, str], *, etag: str, whole_bytes: int) -> ByteRange | None:
    """The range a GET with these headers gets; None: the whole. Raises RangeUnsatisfiable.

    A range for another version of the bytes (``If-Range``) gets the whole. So does one for a date,
    because versions have no dates here.
    """
    asked = headers.get("range")
    if asked is None or headers.get("if-range", etag).strip() != etag:
        return None
    return parse_range(asked, whole_bytes=whole_bytes)


def parse_range(text: str, *, whole_bytes: int) -> ByteRange | None:
    if (match := _ONE_RANGE.match(text.strip())) is None or not any(match.groups()):
        return None
    first, last = match.groups()
    if not first:
        size = min(int(last), whole_bytes)
        start = whole_bytes - size
    else:
        start = int(first)
        if last and int(last) < start:
            return None
        size = min(int(last) + 1 if last else whole_bytes, whole_bytes) - start
    if size <= 0:
        raise RangeUnsatisfiable
    return ByteRange(start, size)


def is_known(headers: Mapping[str, str], *, etag: str) -> bool:
    """Whether the client has these bytes already (``If-None-Match``)."""
    known = headers.get("if-none-match")
    if known is None:
        return False
    return known.strip() == "*" or etag in [tag.strip().removeprefix("W/") for tag in known.split(",")]
