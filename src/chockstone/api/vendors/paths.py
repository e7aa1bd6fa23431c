"""Paths: which vendor's API a path belongs to."""

from __future__ import annotations

from enum import Enum
from typing import Final


class Vendor(Enum):
    OPENAI = "OpenAI"
    ANTHROPIC = "Anthropic"


_PREFIXES: Final = {"/v1": Vendor.OPENAI, "/oai": Vendor.OPENAI, "/anthropic": Vendor.ANTHROPIC}


def vendor_of(path: str) -> Vendor | None:
    """None: the path is of our own API."""
    first = path.find("/", 1)
    return _PREFIXES.get(path if first < 0 else path[:first])
