"""Adapter files: writes the LoRA adapter of an archive as a PEFT directory.

A sampler archive holds these files already; from a training archive they are made. Imports no torch: tensors are copied
as bytes.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

from chockstone.backends.export.peft import ADAPTER_CONFIG, ADAPTER_MODEL, peft_key, render_peft_config
from chockstone.checkpoints.format.dtypes import STORED_ITEMSIZE
from chockstone.checkpoints.format.safetensors_header import order_tensors, render_header
from chockstone.checkpoints.reading.archive import Archive
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


def _convert(archive: Archive, directory: Path, rank: int) -> None:
    stored = archive.tensors(_WEIGHTS)
    names = list(stored)
    order = [names[i] for i in order_tensors([(STORED_ITEMSIZE[stored[key].entry.dtype], key) for key in names])]
    layers: dict[str, None] = {}
    renamed: list[tuple[str, str, tuple[int, ...]]] = []
    for key in order:
        layer, _, matrix = key.rpartition(".")
        if matrix not in _MATRICES:
            raise BadRequest("the checkpoint is not a LoRA run's training state; sample from another one")
        layers[layer] = None
        renamed.append((peft_key(layer, matrix), stored[key].entry.dtype, stored[key].entry.shape))
    header, _ = render_header(renamed, metadata={"format": "pt"})
    with new_directory(directory) as partial:
        root = os.open(partial, _FOLDER)
        try:
            with create_file(root, ADAPTER_MODEL) as file:
                write_whole(file, memoryview(header))
                for key in order:
                    write_whole(file, memoryview(archive.read_range(stored[key].offset, stored[key].entry.size)))
                os.fsync(file.fileno())
            with create_file(root, ADAPTER_CONFIG) as file:
                config = render_peft_config(rank=rank, base_model="", targets=list(layers))
                write_whole(file, memoryview(config))
                os.fsync(file.fileno())
            os.fsync(root)
        finally:
            os.close(root)
