"""Served models: what can be told of a base model without loading it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from chockstone.wire.plain_json import parse_json


@dataclass(frozen=True, slots=True)
class ServedModel:
    name: str
    directory: Path
    architecture: str | None
    max_context: int | None


def describe_models(models: Mapping[str, Path]) -> dict[str, ServedModel]:
    """Raises OSError or ValueError for a directory that holds no model."""
    return {name: _describe(name, directory) for name, directory in models.items()}


def _describe(name: str, directory: Path) -> ServedModel:
    path = directory / "config.json"
    try:
        config = parse_json(path.read_bytes())
    except ValueError as error:
        raise ValueError(f"{str(path)!r} is not JSON of a model: {error}") from None
    if not isinstance(config, dict):
        raise ValueError(f"{str(path)!r} holds no JSON object")
    context = config.get("max_position_embeddings")
    architectures = config.get("architectures") or [None]
    return ServedModel(name, directory.resolve(), architectures[0], context if isinstance(context, int) else None)
