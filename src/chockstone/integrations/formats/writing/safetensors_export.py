"""Exports as safetensors: the model of a checkpoint in one file, or in several with an index, as Hugging Face does."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from chockstone.checkpoints.errors import ExportRefused
from chockstone.checkpoints.format.safetensors_header import SUFFIX
from chockstone.checkpoints.format.tree import flatten
from chockstone.checkpoints.restoring.new_directory import new_directory
from chockstone.checkpoints.restoring.new_file import new_file, sync_file
from chockstone.checkpoints.saving.snapshot import arrange
from chockstone.checkpoints.state_archive import TensorMember
from chockstone.checkpoints.stores.posix import fsync_directory

MODEL_KEYS: Final = ("model", "state_dict", "adapter_model")
_CHUNK_BYTES: Final = 8 * 1024**2


@dataclass(frozen=True, slots=True)
class ModelPart:
    """The tensors of a checkpoint that a safetensors file takes, and the values that it cannot hold."""

    key: str
    tensors: Mapping[str, Any]  # Any: tensors and arrays
    skipped: tuple[str, ...]


def find_model(state: Mapping[str, Any], key: str | None) -> ModelPart:
    """The part of a state that is a model: ``key``, or the usual one. Raises ExportRefused."""
    chosen = key or next((name for name in MODEL_KEYS if isinstance(state.get(name), Mapping)), None)
    if chosen is None or chosen not in state:
        raise ExportRefused(
            f"the checkpoint has no part {chosen or 'model'!r}; it has {', '.join(state)[:200]}. Name the part that is "
            "the model with --part"
        )
    tensors: dict[str, Any] = {}
    skipped: list[str] = []
    for name, value in _walk(state[chosen], ""):
        if hasattr(value, "shape") and hasattr(value, "dtype") and name not in tensors:
            tensors[name] = value
        else:
            skipped.append(name)
    if not tensors:
        raise ExportRefused(f"the part {chosen!r} of the checkpoint holds no tensors; name another one with --part")
    return ModelPart(chosen, tensors, tuple(skipped))


def write_safetensors(
    model: ModelPart, target: Path, *, shard_bytes: int, on_bytes: Callable[[int], None] = lambda _: None
) -> list[str]:
    """Write the tensors to a new file, or to a new directory if they need several; returns the names of the files.

    A target that ends in ``.safetensors`` is one file. Tied tensors are written once, and the header names the other.
    """
    if target.name.endswith(SUFFIX):
        with new_file(target) as partial:
            _write(model.tensors, partial, on_bytes)
        return [target.name]
    shards = list(_divide(model.tensors, shard_bytes))
    with new_directory(target) as partial:
        names = [_shard_name(index, len(shards)) for index in range(len(shards))]
        for name, shard in zip(names, shards, strict=True):
            _write(shard, partial / name, on_bytes)
            sync_file(partial / name)
        if len(shards) > 1:
            names.append(f"model{SUFFIX}.index.json")
            (partial / names[-1]).write_text(json.dumps(_index(shards, names), indent=2))
            sync_file(partial / names[-1])
        fsync_directory(partial)
    return names


def _walk(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Everything that is no container, with the keys on the way joined by dots."""
    items: Any = ()
    if isinstance(value, Mapping):
        items = value.items()
    elif isinstance(value, list | tuple):
        items = enumerate(value)
    else:
        yield path, value
    for key, item in items:
        yield from _walk(item, f"{path}.{key}" if path else str(key))


def _divide(tensors: Mapping[str, Any], shard_bytes: int) -> Iterator[dict[str, Any]]:
    """Tensors in their order, as many in a shard as fit; one that is larger is a shard of its own.

    Tied tensors share a shard, so that they are stored once.
    """
    homes: dict[object, int] = {}
    shards: list[dict[str, Any]] = [{}]
    used = 0
    for name, tensor in tensors.items():
        memory = _memory_of(tensor)
        if memory in homes:
            shards[homes[memory]][name] = tensor
            continue
        size = _size_of(tensor)
        if used and used + size > shard_bytes:
            shards.append({})
            used = 0
        shards[-1][name] = tensor
        used += size
        if size:
            homes[memory] = len(shards) - 1
    yield from shards


def _memory_of(tensor: Any) -> object:
    address = tensor.data_ptr() if hasattr(tensor, "data_ptr") else tensor.__array_interface__["data"][0]
    return address, tuple(tensor.shape), str(tensor.dtype)


def _size_of(tensor: Any) -> int:
    size: int = tensor.dtype.itemsize * math.prod(tensor.shape)
    return size


def _write(tensors: Mapping[str, Any], path: Path, on_bytes: Callable[[int], None]) -> None:
    """One safetensors file, streamed: the same bytes as a member of an archive."""
    leaves = flatten({"model": dict(tensors)}).leaves
    unnamed = [leaf for leaf in leaves if leaf.stored_shape != tuple(leaf.shape)]
    if unnamed:
        raise ExportRefused(
            f"tensor {unnamed[0].key!r} is of {unnamed[0].dtype.torch_name}, for which safetensors has no name; export "
            "to torch or DCP"
        )
    arrangement = arrange(leaves)
    member = TensorMember(arrangement.sections[0], leaves, arrangement.places, lambda: None)
    buffer = memoryview(bytearray(min(_CHUNK_BYTES, member.size)))
    with path.open("xb") as file:
        for start in range(0, member.size, len(buffer)):
            chunk = buffer[: min(len(buffer), member.size - start)]
            member.read_into(start, chunk)
            file.write(chunk)
            on_bytes(len(chunk))


def _shard_name(index: int, count: int) -> str:
    return f"model{SUFFIX}" if count == 1 else f"model-{index + 1:05d}-of-{count:05d}{SUFFIX}"


def _index(shards: list[dict[str, Any]], names: list[str]) -> dict[str, Any]:
    places: dict[str, str] = {}
    total = 0
    seen: set[object] = set()
    for name, shard in zip(names, shards, strict=False):
        for key, tensor in shard.items():
            if (size := _size_of(tensor)) and (memory := _memory_of(tensor)) in seen:
                continue  # a tied name, which the header of its file has
            seen.add(memory if size else key)
            places[key] = name
            total += size
    return {"metadata": {"total_size": total}, "weight_map": places}
