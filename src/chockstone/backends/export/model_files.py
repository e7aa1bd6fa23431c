"""Model files: the files beside the weights in a Hugging Face directory. Code files are never copied."""

from __future__ import annotations

import json
from pathlib import Path, PurePath
from typing import Any, Final

from chockstone.wire.codecs.json_files import parse_json
from chockstone.wire.failures import ServerFailure

CONFIG: Final = "config.json"
WEIGHTS: Final = "model.safetensors"
INDEX: Final = "model.safetensors.index.json"
_DTYPE_KEYS: Final = {"dtype", "torch_dtype"}  # for new and old readers
_COMPANIONS: Final = (
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "tokenizer.model",
    "spiece.model",
    "chat_template.jinja",
    "chat_template.json",
)


def read_companions(directory: Path) -> dict[str, bytes]:
    """The files of the tokenizer and the generation settings that exist."""
    found: dict[str, bytes] = {}
    for name in _COMPANIONS:
        try:
            found[name] = (directory / name).read_bytes()
        except FileNotFoundError:
            continue
        except OSError as error:
            raise _unreadable(directory / name, error) from error
    return found


def read_config(directory: Path) -> dict[str, Any]:
    """``config.json``, parsed."""
    path = directory / CONFIG
    try:
        config = parse_json(path.read_bytes())
    except OSError as error:
        raise _unreadable(path, error) from error
    except ValueError as error:
        raise ServerFailure(f"{str(path)!r} of the base model is not JSON of a model: {error}") from error
    if not isinstance(config, dict):
        raise ServerFailure(f"{str(path)!r} of the base model is not a JSON object")
    return config


def check_weights(directory: Path) -> None:
    """Hold that transformers reads safetensors files of ``directory`` only. Raises ServerFailure, saying why not."""
    if '"transformers_weights":' in json.dumps(read_config(directory)):  # in it, or in a part of it
        raise ServerFailure(
            f"{CONFIG} has an entry 'transformers_weights', which is not supported; rename the file with the weights "
            f"to {WEIGHTS} and delete the entry"
        )
    if (directory / WEIGHTS).is_file():
        return  # transformers reads no index then
    if not (directory / INDEX).is_file():
        raise ServerFailure(
            f"it has neither {WEIGHTS} nor {INDEX}. Pickle files (.bin) are not read, as they can run code; convert "
            "the model with `save_pretrained(DIRECTORY)`"
        )
    try:
        names = sorted(set(parse_json((directory / INDEX).read_bytes())["weight_map"].values()))
        strange = [name for name in names if PurePath(name).name != name or not name.endswith(".safetensors")]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:  # what foreign JSON can bring
        raise ServerFailure(f"{INDEX} is not an index of safetensors files") from error
    if not names or strange:
        named = repr(strange[0]) if strange else "no file"
        raise ServerFailure(f"{INDEX} names {named}; weights must be safetensors files in the same directory")
    if missing := [name for name in names if not (directory / name).is_file()]:
        raise ServerFailure(f"it has no {missing[0]!r}, which {INDEX} names; copy or download it again")


def render_config(config: dict[str, Any]) -> bytes:
    return json.dumps(config, indent=2).encode() + b"\n"


def with_dtype(config: dict[str, Any], dtype: str) -> dict[str, Any]:
    """The same configuration for weights of another type."""
    keys = config.keys() & _DTYPE_KEYS or {"dtype"}
    changed = config | dict.fromkeys(keys, dtype)
    text = config.get("text_config")
    if isinstance(text, dict) and text.keys() & _DTYPE_KEYS:
        changed["text_config"] = with_dtype(text, dtype)
    return changed


def untied(config: dict[str, Any]) -> dict[str, Any]:
    """The same configuration for a model whose output layer has weights of its own."""
    changed = config | {"tie_word_embeddings": False}
    text = config.get("text_config")
    if isinstance(text, dict):
        changed["text_config"] = text | {"tie_word_embeddings": False}
    return changed


def _unreadable(path: Path, error: OSError) -> ServerFailure:
    return ServerFailure(f"{str(path)!r} of the base model cannot be read: {error.strerror or error}")
