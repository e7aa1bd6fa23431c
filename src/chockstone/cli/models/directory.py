"""Reads facts about a model from its directory, without loading the model."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, Final

from chockstone.wire.codecs.json_files import parse_json

_LONGEST_HEADER: Final = 100_000_000  # what the safetensors library accepts, too


def read_config(directory: Path) -> dict[str, Any]:  # Any: JSON
    """Its ``config.json``. Raises ValueError, saying why ``directory`` is no model."""
    if not directory.is_dir():
        raise ValueError(f"there is no directory {str(directory)!r}")
    try:
        config = parse_json((directory / "config.json").read_bytes())
    except FileNotFoundError:
        raise ValueError(f"the directory {str(directory)!r} holds no config.json, so no Hugging Face model") from None
    except OSError as error:
        raise ValueError(f"cannot read config.json in {str(directory)!r}: {error.strerror or error}") from None
    except ValueError as error:
        raise ValueError(f"config.json in {str(directory)!r} is not JSON of a model: {error}") from None
    if not isinstance(config, dict) or not isinstance(config.get("model_type"), str):
        raise ValueError(f"config.json in {str(directory)!r} names no model_type")
    return config


def count_parameters(directory: Path) -> int | None:
    """From the headers of its safetensors files; None where they cannot be read. Tied weights count once."""
    try:
        counts = [_count(path) for path in directory.glob("*.safetensors")]
    except (
        OSError,
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        RecursionError,
    ):  # what foreign bytes and JSON can bring
        return None
    return sum(counts) or None


def _count(path: Path) -> int:
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        if size > _LONGEST_HEADER:
            raise ValueError(f"{path.name!r} is not a safetensors file")
        header = json.loads(file.read(size))
    return sum(math.prod(entry["shape"]) for name, entry in header.items() if name != "__metadata__")


def format_parameters(count: int) -> str:
    """Such as ``1.0M``, ``596M`` or ``8.2B``."""
    for unit, letter in ((1e9, "B"), (1e6, "M"), (1e3, "K")):
        if count >= 0.9995 * unit:
            number = count / unit
            return f"{number:.0f}{letter}" if number >= 99.95 else f"{number:.1f}{letter}"
    return str(count)
