"""Facts of a base model that requests to vLLM need, read from its files without loading the model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from chockstone.wire.codecs.json_files import read_model_object


@dataclass(frozen=True, slots=True)
class ModelFacts:
    name: str
    vocabulary: int
    hidden_size: int
    max_context: int | None  # None: the files name no limit
    eos_tokens: frozenset[int]


def read_facts(name: str, directory: Path) -> ModelFacts:
    """Raises OSError or ValueError for a directory that holds no such model."""
    config = read_model_object(directory / "config.json")
    text_config = {**config, **(config.get("text_config") or {})}
    found: set[int] = set()
    for source in (text_config, _read_if_there(directory / "generation_config.json")):
        value = source.get("eos_token_id")
        found.update([value] if isinstance(value, int) else value or [])
    if (eos := _tokenizer_eos(directory)) is not None:
        found.add(eos)
    vocabulary, hidden_size = text_config.get("vocab_size"), text_config.get("hidden_size")
    if not isinstance(vocabulary, int) or not isinstance(hidden_size, int):
        raise ValueError(f"model {name!r}: {str(directory / 'config.json')!r} has no vocab_size, or no hidden_size")
    context = text_config.get("max_position_embeddings")
    max_context = context if isinstance(context, int) else None
    return ModelFacts(name, vocabulary, hidden_size, max_context, frozenset(found))


def _tokenizer_eos(directory: Path) -> int | None:
    token = _read_if_there(directory / "tokenizer_config.json").get("eos_token")
    token = token.get("content") if isinstance(token, dict) else token
    if token is None or not (directory / "tokenizer.json").is_file():
        return None
    return Tokenizer.from_file(str(directory / "tokenizer.json")).token_to_id(token)


def _read_if_there(path: Path) -> dict[str, Any]:
    return read_model_object(path) if path.is_file() else {}
