"""Model descriptions: facts about a base model from its config file, without loading it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from chockstone.wire.codecs.json_files import read_model_object


@dataclass(frozen=True, slots=True)
class ModelDescription:
    name: str
    directory: Path
    architecture: str | None
    max_context: int | None


def describe_models(models: Mapping[str, Path]) -> dict[str, ModelDescription]:
    """Raises OSError or ValueError for a directory that holds no model."""
    return {name: _describe(name, directory) for name, directory in models.items()}


def _describe(name: str, directory: Path) -> ModelDescription:
    config = read_model_object(directory / "config.json")
    context = config.get("max_position_embeddings")
    architectures = config.get("architectures") or [None]
    return ModelDescription(name, directory.resolve(), architectures[0], context if isinstance(context, int) else None)
