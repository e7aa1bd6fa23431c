"""JSON from files that others wrote: parsed, or a ValueError that says what is wrong with it."""

from __future__ import annotations

import json
from typing import Any, Final

MAX_DEPTH: Final = 64  # no configuration of a model is nested nearly as deep
_TOO_DEEP: Final = f"it is nested more than {MAX_DEPTH} levels deep"


def parse_json(content: bytes) -> Any:  # Any: plain JSON
    """Raises ValueError, also for what is nested so deep that those who go through it would fail."""
    try:
        document = json.loads(content)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    layer = [document]
    for _ in range(MAX_DEPTH):
        layer = [child for value in layer for child in _children(value)]
        if not layer:
            return document
    raise ValueError(_TOO_DEEP)


def _children(value: Any) -> list[Any]:  # Any: plain JSON
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [child for child in inside if isinstance(child, dict | list)]
