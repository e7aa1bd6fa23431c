"""Safetensors files: one, or several with an index, as the tensors of a model by name."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from chockstone.checkpoints.errors import DamagedArchive, ImportRefused
from chockstone.checkpoints.format.dtypes import BY_NAME
from chockstone.checkpoints.format.safetensors_header import (
    LENGTH_BYTES,
    RESERVED_KEY,
    TensorEntry,
    header_bytes,
    parse_header,
)
from chockstone.extras import require
from chockstone.integrations.formats.reading.mapped_files import MappedFile, SourceDirectory

INDEX_SUFFIX: Final = ".safetensors.index.json"
_FORMAT_KEY: Final = "format"


def read_safetensors(file: MappedFile) -> dict[str, Any]:
    """The tensors of one file by name, as torch tensors over the mapping. Tied names are the same tensor.

    Raises ImportRefused.
    """
    require("torch", f"the import of {file.name!r}")
    import torch

    header = _header(file)
    tensors: dict[str, Any] = {}
    for key, entry in _entries(file, header).items():
        dtype = getattr(torch, BY_NAME[entry.dtype].torch_name)
        content = file.memory[entry.start : entry.start + entry.size]
        flat = torch.from_numpy(content).view(dtype) if entry.size else torch.empty(0, dtype=dtype)
        tensors[key] = flat.view(entry.shape)
    for alias, key in _metadata(header).items():
        if alias != _FORMAT_KEY and alias not in tensors and key in tensors:
            tensors[alias] = tensors[key]  # safetensors stores tied tensors once, and notes the other names
    return tensors


def read_metadata(file: MappedFile) -> dict[str, str]:
    """What the header says besides the tensors."""
    return _metadata(_header(file))


def read_sharded(directory: SourceDirectory, index_name: str, read: Callable[[MappedFile], Mapping[str, Any]]) -> Any:
    """The tensors of all files that an index names, by name. Each file must hold what the index says.

    ``read``: reads the tensors of one file.
    """
    index = directory.open(index_name).json()
    places = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(places, dict) or not all(isinstance(name, str) for name in places.values()):
        raise ImportRefused(f"{index_name!r} is not an index of files: it has no 'weight_map' of names")
    shards = {name: read(directory.open(name)) for name in dict.fromkeys(places.values())}
    tensors: dict[str, Any] = {}
    for key, name in places.items():
        if key not in shards[name]:
            raise ImportRefused(
                f"{index_name!r} says that {name!r} holds the tensor {key[:200]!r}, which is not there. Copy the "
                "checkpoint again"
            )
        tensors[key] = shards[name][key]
    unnamed = sorted(key for shard in shards.values() for key in shard if key not in places)
    tied = {key: shard[key] for shard in shards.values() for key in shard if key in unnamed}
    return {**tensors, **tied}


def is_safetensors(file: MappedFile) -> bool:
    """Whether a file begins as safetensors do: the length of a JSON object that fits, and its brace."""
    length = int.from_bytes(file.read(0, LENGTH_BYTES), "little")
    return file.size > LENGTH_BYTES and 2 <= length <= file.size - LENGTH_BYTES and file.read(LENGTH_BYTES, 1) == b"{"


def _header(file: MappedFile) -> bytes:
    try:
        size = header_bytes(file.read(0, LENGTH_BYTES), member=file.name, member_bytes=file.size)
    except DamagedArchive as error:
        raise _refused(file, error) from error
    return file.read(0, size)


def _entries(file: MappedFile, header: bytes) -> dict[str, TensorEntry]:
    try:
        return parse_header(header, member=file.name, member_bytes=file.size)
    except DamagedArchive as error:
        raise _refused(file, error) from error


def _metadata(header: bytes) -> dict[str, str]:
    document = json.loads(header[LENGTH_BYTES:])
    found = document.get(RESERVED_KEY)
    return {key: value for key, value in found.items() if isinstance(value, str)} if isinstance(found, dict) else {}


def _refused(file: MappedFile, error: DamagedArchive) -> ImportRefused:
    return ImportRefused(
        f"{file.name!r} is not a sound safetensors file: {error}. Nothing was stored; copy the file again, or import "
        "an older checkpoint"
    )
