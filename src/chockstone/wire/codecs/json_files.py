"""JSON files of models: parses them, or raises ValueError that says what is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

MAX_DEPTH: Final = 64  # no configuration of a model is nested nearly as deep
_TOO_DEEP: Final = f"it is nested more than {MAX_DEPTH} levels deep"


def parse_json(content: bytes) -> Any:  # Any: plain JSON
    """Raises ValueError, also for JSON that is nested too deeply for recursive readers."""
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


def read_model_object(path: Path) -> dict[str, Any]:  # Any: plain JSON
    """The JSON object in a file of a model's directory. Raises OSError, or ValueError that names the file."""
    try:
        value = parse_json(path.read_bytes())
    except ValueError as error:
        raise ValueError(f"{str(path)!r} is not JSON of a model: {error}") from None
    if not isinstance(value, dict):
        raise ValueError(f"{str(path)!r} holds no JSON object")
    return value


def _children(value: Any) -> list[Any]:  # Any: plain JSON
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [child for child in inside if isinstance(child, dict | list)]
