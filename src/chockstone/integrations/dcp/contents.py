"""Contents of an archive in DCP's terms: flat names, with the tensor or the value behind each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch.distributed.checkpoint._nested_dict import flatten_state_dict
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    TensorProperties,
    TensorStorageMetadata,
)

from chockstone.checkpoints.format.tree import TensorReference, unflatten
from chockstone.checkpoints.reading.archive import Archive, ArchiveTensor
from chockstone.checkpoints.restoring.destinations import RestoreDestinations


class StoredTensor(NamedTuple):
    """A tensor of an archive that DCP may load any part of."""

    tensor: ArchiveTensor
    dtype: torch.dtype
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ArchiveContents:
    """What an archive holds, by the names that DCP's planner gives to a state of the same structure."""

    tensors: dict[str, StoredTensor]
    values: dict[str, Any]  # Any: with a TensorReference in place of each array
    paths: dict[str, tuple[str | int, ...]]
    is_flat: bool

    @classmethod
    def of(cls, archive: Archive, destinations: RestoreDestinations, *, is_flat: bool) -> ArchiveContents:
        """``is_flat``: whether the planner that loads flattens the state, as the default one does."""
        found: dict[int, tuple[torch.Tensor, TensorReference]] = {}  # by identity; keeps the stand-ins alive

        def stand_in(reference: TensorReference) -> object:
            """A tensor without memory, because the planner looks for tensors. A numpy array is a value to it."""
            if reference.form != "torch":
                return reference
            _, dtype, shape = destinations.find(reference)
            made = torch.empty(shape, dtype=getattr(torch, dtype.torch_name), device="meta")
            found[id(made)] = made, reference
            return made

        state = unflatten(archive.state(), stand_in)
        flat, paths = flatten_state_dict(state) if is_flat else (state, {})
        tensors, values = {}, {}
        for name, thing in flat.items():
            if isinstance(thing, torch.Tensor):
                tensor, dtype, shape = destinations.find(found[id(thing)][1])
                tensors[name] = StoredTensor(tensor, getattr(torch, dtype.torch_name), shape)
            else:
                values[name] = replace_leaves(thing, lambda leaf: found[id(leaf)][1] if id(leaf) in found else leaf)
        return cls(tensors, values, paths, is_flat)

    def metadata(self) -> Metadata:
        """Each tensor is one chunk, whatever wrote it: any part of it can be read by itself."""
        entries: dict[str, TensorStorageMetadata | BytesStorageMetadata] = {}
        for name, stored in self.tensors.items():
            size = torch.Size(stored.shape)
            chunk = ChunkStorageMetadata(offsets=torch.Size([0] * len(size)), sizes=size)
            entries[name] = TensorStorageMetadata(TensorProperties(dtype=stored.dtype), size, [chunk])
        entries |= {name: BytesStorageMetadata() for name in self.values}
        return Metadata(entries, planner_data=self.paths if self.is_flat else None)


def replace_leaves(value: Any, replacement: Callable[[Any], Any]) -> Any:
    """``value`` with a replacement for each tensor and TensorReference in it."""
    if isinstance(value, torch.Tensor | TensorReference):
        return replacement(value)
    if isinstance(value, list):
        return [replace_leaves(item, replacement) for item in value]
    if isinstance(value, tuple) and not isinstance(value, torch.Size):
        return tuple(replace_leaves(item, replacement) for item in value)
    if isinstance(value, dict):
        made: Any = type(value)()
        made.update({key: replace_leaves(item, replacement) for key, item in value.items()})
        if hasattr(value, "_metadata"):  # module versions, kept by nn.Module
            made._metadata = vars(value)["_metadata"]
        return made
    return value
