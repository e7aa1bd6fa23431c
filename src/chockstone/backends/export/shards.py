"""Shards: writes the tensors of a model as safetensors files, with one tensor in memory at a time.

Up to five gigabytes are one ``model.safetensors``. Larger models are ``model-00001-of-0000N.safetensors`` files with an
index, as the tools of Hugging Face write them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch

from chockstone.backends.export.base_files import TensorShape
from chockstone.backends.export.model_files import INDEX, WEIGHTS
from chockstone.checkpoints.format.dtypes import BY_NAME, STORED_ITEMSIZE
from chockstone.checkpoints.format.safetensors_header import count_bytes, order_tensors, render_header

SHARD_BYTES: Final = 5_000_000_000


@dataclass(frozen=True, slots=True)
class Output:
    """A tensor to be written. ``pieces`` yields its rows in order, in any type."""

    key: str
    shape: TensorShape
    pieces: Callable[[], Iterator[torch.Tensor]]

    @property
    def size_bytes(self) -> int:
        return count_bytes(self.shape.dtype, self.shape.extents)


def write_shards(
    outputs: Sequence[Output],
    directory: Path,
    *,
    shard_bytes: int = SHARD_BYTES,
    on_bytes: Callable[[int], None] = lambda _: None,
) -> None:
    """Write every tensor and, if there are several files, their index. On return the files are durable."""
    shards = _cut(outputs, shard_bytes)
    if len(shards) == 1:
        _write_shard(directory / WEIGHTS, shards[0], on_bytes)
        return
    weight_map: dict[str, str] = {}
    for number, shard in enumerate(shards, start=1):
        name = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        _write_shard(directory / name, shard, on_bytes)
        weight_map |= {output.key: name for output in shard}
    total = sum(output.size_bytes for output in outputs)
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
    write_file(directory / INDEX, json.dumps(index, indent=2).encode() + b"\n")


def write_file(path: Path, content: bytes) -> None:
    """Write a new file; it is durable on return."""
    with open(path, "xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _cut(outputs: Sequence[Output], shard_bytes: int) -> list[list[Output]]:
    shards: list[list[Output]] = [[]]
    room = shard_bytes
    for output in outputs:
        if output.size_bytes > room and shards[-1]:
            shards.append([])
            room = shard_bytes
        shards[-1].append(output)
        room -= output.size_bytes
    return shards


def _write_shard(path: Path, shard: Sequence[Output], on_bytes: Callable[[int], None]) -> None:
    order = order_tensors([(STORED_ITEMSIZE[output.shape.dtype], output.key) for output in shard])
    outputs = [shard[index] for index in order]
    header, _ = render_header(
        [(output.key, output.shape.dtype, output.shape.extents) for output in outputs], metadata={"format": "pt"}
    )
    with open(path, "xb", buffering=0) as file:
        _write(file.fileno(), memoryview(header))
        on_bytes(len(header))
        for output in outputs:
            dtype = getattr(torch, BY_NAME[output.shape.dtype].torch_name)
            for piece in output.pieces():
                content = piece.to(dtype).reshape(-1).view(torch.uint8).numpy().data
                _write(file.fileno(), content)
                on_bytes(len(content))
        os.fsync(file.fileno())


def _write(descriptor: int, content: memoryview) -> None:
    while len(content):
        content = content[os.write(descriptor, content) :]
