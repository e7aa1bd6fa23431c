"""Weight headers: how many numbers the safetensors files of a model directory hold, read without their weights."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from chockstone.wire.codecs.json_files import parse_json

_LENGTH_BYTES: Final = 8  # at the front of a file
_LONGEST: Final = 100_000_000  # the limit of safetensors


@dataclass(frozen=True, slots=True)
class WeightHeaders:
    parameters: int
    stored_bytes: int
    is_packed: bool = False  # some tensors hold whole numbers, as those of quantised models do

    @classmethod
    def read(cls, directory: Path) -> Self | None:
        """Of all safetensors files; None if there are none, or one cannot be read."""
        try:
            headers = [_read(path) for path in sorted(directory.glob("*.safetensors"))]
            tensors = [entry for header in headers for name, entry in header.items() if name != "__metadata__"]
            parameters = sum(math.prod(entry["shape"]) for entry in tensors)
            stored = sum(entry["data_offsets"][1] - entry["data_offsets"][0] for entry in tensors)
        except (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError):  # what foreign JSON can bring
            return None
        is_packed = any(str(entry.get("dtype")).startswith(("I", "U", "F8")) for entry in tensors)
        return cls(int(parameters), int(stored), is_packed) if tensors else None


def _read(path: Path) -> dict[str, dict[str, Any]]:  # Any: plain JSON
    with path.open("rb") as file:
        length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
        if length > _LONGEST:
            raise ValueError(f"{path.name!r} is not a safetensors file")
        header: dict[str, dict[str, Any]] = parse_json(file.read(length))
    return header
