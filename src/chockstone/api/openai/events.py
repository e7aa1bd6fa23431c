"""Server-sent events as OpenAI's clients read them."""

from __future__ import annotations

from typing import Any, Final

import orjson

DONE: Final = b"data: [DONE]\n\n"


def encode_data(data: dict[str, Any]) -> bytes:  # Any: plain JSON
    return b"data: " + orjson.dumps(data) + b"\n\n"


def encode_named(data: dict[str, Any]) -> bytes:  # Any: plain JSON
    """An event that is named by its ``type``."""
    return b"event: " + str(data["type"]).encode() + b"\n" + encode_data(data)
