"""Adapter files: writes the LoRA adapter of an archive as a PEFT directory.

A sampler archive holds these files already; from a training archive they are made. Imports no torch: tensors are copied
as bytes.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from chockstone.backends.export.expert_files import ExpertFiles, is_expert_weight, split_matrix
from chockstone.backends.export.peft import (
    ADAPTER_CONFIG,
    ADAPTER_MODEL,
    choose_targets,
    peft_key,
    render_peft_config,
)
from chockstone.checkpoints.format.dtypes import STORED_ITEMSIZE
from chockstone.checkpoints.format.safetensors_header import order_tensors, render_header
from chockstone.checkpoints.reading.archive import Archive, ArchiveTensor
from chockstone.checkpoints.restoring.export import create_file, export_members, write_whole
from chockstone.checkpoints.restoring.new_directory import new_directory
from chockstone.wire.failures import BadRequest

_WEIGHTS: Final = "weights.safetensors"
_MATRICES: Final = ("lora_A", "lora_B")
_IN_A_BLOCK: Final = re.compile(r"\.\d+\.")
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


def write_adapter(archive: Archive, directory: Path) -> None:
    """Create ``directory``, which must not exist. On return it is durable and verified; on error it is gone.

    Raises BadRequest for an archive without an adapter, CheckpointError for one that cannot be read.
    """
    if ADAPTER_MODEL in archive.members:
        export_members(archive, directory, members=[ADAPTER_MODEL, ADAPTER_CONFIG])
        return
    rank = _rank(archive)
    if rank == 0:
        raise BadRequest(
            "this checkpoint has all weights of a model (its run has rank 0), and this server samples with vLLM, which "
            "it gives LoRA adapters only. Export it with save_weights_external and serve the files as a model of their "
            "own; or sample from it on a server without --sampler vllm"
        )
    if _WEIGHTS not in archive.members:
        raise BadRequest("the checkpoint is neither a sampler's nor a training state; sample from another one")
    _convert(archive, directory, rank)


def has_head(archive: Archive) -> bool:
    """Whether the adapter has matrices for the output layer, which is the only layer outside the numbered blocks."""
    member = ADAPTER_MODEL if ADAPTER_MODEL in archive.members else _WEIGHTS
    return any(not _IN_A_BLOCK.search(key) for key in archive.tensors(member))


def _rank(archive: Archive) -> int:
    try:
        rank = archive.state()["run"]["spec"]["rank"]
    except (KeyError, TypeError):
        rank = None
    if type(rank) is not int:
        raise BadRequest("the checkpoint is not that of a run; sample from another one")
    return rank


@dataclass(frozen=True, slots=True)
class _Piece:
    """A tensor of the file, and where its bytes are in the archive. ``arrange`` orders them, if they are in another."""

    key: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    size: int
    arrange: Callable[[memoryview], memoryview] | None = None


def _convert(archive: Archive, directory: Path, rank: int) -> None:
    expert_files = _expert_files(archive)
    layers: dict[str, None] = {}
    experts: dict[str, list[str]] = {}
    pieces: list[_Piece] = []
    for key, stored in archive.tensors(_WEIGHTS).items():
        layer, _, matrix = key.rpartition(".")
        if matrix not in _MATRICES:
            raise BadRequest("the checkpoint is not a LoRA run's training state; sample from another one")
        if is_expert_weight(stored.entry.shape):
            found = _split(layer, matrix, stored, expert_files)
            experts[layer] = list(found)
            pieces += found.values()
        else:
            layers[layer] = None
            entry = stored.entry
            pieces.append(_Piece(peft_key(layer, matrix), entry.dtype, entry.shape, stored.offset, entry.size))
    order = order_tensors([(STORED_ITEMSIZE[piece.dtype], piece.key) for piece in pieces])
    pieces = [pieces[index] for index in order]
    header, _ = render_header([(piece.key, piece.dtype, piece.shape) for piece in pieces], metadata={"format": "pt"})
    targets, parameters = choose_targets(list(layers), [], experts, expert_files)
    with new_directory(directory) as partial:
        root = os.open(partial, _FOLDER)
        try:
            with create_file(root, ADAPTER_MODEL) as file:
                write_whole(file, memoryview(header))
                for piece in pieces:
                    content = memoryview(archive.read_range(piece.offset, piece.size))
                    write_whole(file, content if piece.arrange is None else piece.arrange(content))
                os.fsync(file.fileno())
            with create_file(root, ADAPTER_CONFIG) as file:
                config = render_peft_config(rank=rank, base_model="", targets=targets, parameters=parameters)
                write_whole(file, memoryview(config))
                os.fsync(file.fileno())
            os.fsync(root)
        finally:
            os.close(root)


def _expert_files(archive: Archive) -> ExpertFiles | None:
    found = archive.state()["run"].get("expert_files")
    try:
        return None if found is None else ExpertFiles.from_json(found)
    except (KeyError, TypeError) as error:
        raise BadRequest("the checkpoint does not say how its experts are named; sample from another one") from error


def _split(layer: str, matrix: str, stored: ArchiveTensor, expert_files: ExpertFiles | None) -> dict[str, _Piece]:
    """What one matrix of all experts becomes, by names of layers in PEFT files."""
    entry = stored.entry
    kind = np.dtype(f"V{STORED_ITEMSIZE[entry.dtype]}")
    if expert_files is None:

        def arrange(content: memoryview) -> memoryview:
            values = np.frombuffer(content, kind).reshape(entry.shape)
            ((_, arranged),) = split_matrix(layer, matrix, values, None)
            return memoryview(np.ascontiguousarray(arranged).tobytes())

        experts, rows, columns = entry.shape
        shape = (experts * rows, columns) if matrix == "lora_A" else (rows, columns * experts)
        module, _, weight = layer.rpartition(".")
        name = module if weight == "down_proj" else f"{module}.base_layer"
        return {name: _Piece(peft_key(name, matrix), entry.dtype, shape, stored.offset, entry.size, arrange)}
    places = np.empty(entry.shape, kind)  # only for addresses: pages that are not touched take no memory
    start = _address(places)
    return {
        name: _Piece(
            peft_key(name, matrix), entry.dtype, part.shape, stored.offset + _address(part) - start, part.nbytes
        )
        for name, part in split_matrix(layer, matrix, places, expert_files)
    }


def _address(values: npt.NDArray[np.void]) -> int:
    address: int = values.__array_interface__["data"][0]
    return address
