"""Shards: which part of a tensor this process has, of a DTensor or of Pieces that the caller describes."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True, eq=False)
class Pieces:
    """This rank's ranges of a tensor that is sharded over the ranks.

        Pieces((10, 4), torch.float32, [(0, first), (32, second)])

    Each piece is a one-dimensional tensor of ``dtype``, and the number is where its first element stands among all
    elements of the whole, counted row by row. Pieces stand in rising order and do not overlap; those of all ranks
    together are the whole, each element once. A rank may have none. As part of a state they are saved, as part of a
    target they are filled in place.
    """

    shape: tuple[int, ...]  # of the whole
    dtype: torch.dtype
    pieces: Sequence[tuple[int, torch.Tensor]]

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", tuple(map(int, self.shape)))
        object.__setattr__(self, "pieces", tuple((int(first), tensor) for first, tensor in self.pieces))
        position, end = 0, math.prod(self.shape)
        for first, tensor in self.pieces:
            if tensor.dim() != 1 or tensor.dtype != self.dtype:
                raise ValueError(
                    f"a piece of {self.dtype} is a tensor of {tensor.dtype} with {tensor.dim()} dimensions; "
                    "give each as one dimension of the dtype of the whole"
                )
            if not position <= first <= first + tensor.numel() <= end:
                raise ValueError(
                    f"elements {first} to {first + tensor.numel()} of {end} are out of order, overlap the piece "
                    f"before, which ends at {position}, or are not in the whole of shape {list(self.shape)}"
                )
            position = first + tensor.numel()


class Box(NamedTuple):
    """A part of a tensor: ``sizes`` elements along each dimension, from ``offsets`` on."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]

    @property
    def elements(self) -> int:
        return math.prod(self.sizes)

    def rows(self, first: int, last: int) -> Box:
        """These of its rows along the first dimension."""
        return Box((self.offsets[0] + first, *self.offsets[1:]), (last - first, *self.sizes[1:]))


@dataclass(frozen=True, slots=True, eq=False)
class Boxes:
    """This rank's boxes of a tensor that is sharded over the ranks: as Pieces, along any of its dimensions.

        Boxes((10, 4), torch.float32, [((0, 2), right_half)])

    Each part is a tensor of ``dtype`` with the dimensions of the whole, and the numbers say where its first element
    stands. Every byte of a part stands before those of the next in the whole. The parts of all ranks together are the
    whole, each element once. A rank may have none.
    """

    shape: tuple[int, ...]  # of the whole
    dtype: torch.dtype
    parts: Sequence[tuple[tuple[int, ...], torch.Tensor]]
    is_flat: bool = False  # whether parts have one dimension, whatever the whole has

    @property
    def shards(self) -> TensorShards:
        shape = (math.prod(self.shape),) if self.is_flat else self.shape
        return TensorShards(shape, tuple(Box(offsets, tuple(tensor.shape)) for offsets, tensor in self.parts))

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        return tuple(tensor for _, tensor in self.parts)


@dataclass(frozen=True, slots=True)
class TensorShards:
    """The boxes of a tensor of ``shape`` that this process has, in rising order."""

    shape: tuple[int, ...]  # for Pieces one dimension, whatever the whole has
    boxes: tuple[Box, ...]
    replicas: tuple[int, ...] = ()  # the ranks that have the same boxes, in order; none: this rank alone

    @property
    def is_whole(self) -> bool:
        return sum(box.elements for box in self.boxes) == math.prod(self.shape)


class UnsupportedSharding(ValueError):
    """A DTensor is placed in a way that boxes cannot describe."""


def is_dtensor(value: object) -> bool:
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(value, module.DTensor)


def shards_of(value: Any) -> TensorShards | None:  # Any: torch is not imported here
    """The shards of a DTensor, of Pieces or of Boxes; None for a tensor that every process has whole."""
    if isinstance(value, Boxes):
        return value.shards
    if isinstance(value, Pieces):
        boxes = tuple(Box((first,), (tensor.numel(),)) for first, tensor in value.pieces)
        return TensorShards((math.prod(value.shape),), boxes)
    if not is_dtensor(value):
        return None
    mesh = value.device_mesh
    shards = _shards_on_mesh(tuple(value.shape), mesh, tuple(value.placements), mesh.get_rank())
    sizes = shards.boxes[0].sizes if shards.boxes else None
    local = tuple(local_tensor_of(value).shape)
    if local == sizes or (sizes is None and not (value.shape and math.prod(local))):
        return shards  # outside its mesh torch has something empty, or a scalar for a scalar
    raise UnsupportedSharding(f"<DTensor of {list(value.shape)}> is here as {list(local)}, where its mesh has {sizes}")


def local_tensors_of(value: Any) -> tuple[Any, ...]:
    """The tensors that hold the boxes, in their order."""
    if isinstance(value, Boxes):
        return value.tensors
    if isinstance(value, Pieces):
        return tuple(tensor for _, tensor in value.pieces)
    return (local_tensor_of(value),)


def local_tensor_of(value: Any) -> Any:
    """The local tensor of a DTensor; any other tensor itself."""
    if not is_dtensor(value):
        return value
    local = value._local_tensor  # to_local() costs a thousand times as much, and a save asks for every tensor
    return local.wait() if hasattr(local, "wait") else local  # one that is still on its way here


def address_of(value: Any) -> int:
    """The address that tied tensors share. All ranks must find the same ties.

    So where this rank has nothing of a tensor, its memory is asked for all the same. But what is empty and lies in the
    memory of something larger has neighbours at the same address, and is tied to nothing but itself.
    """
    if not math.prod(value.shape):
        return 0
    if isinstance(value, Pieces | Boxes):
        return id(value)
    local = local_tensor_of(value)
    storage = local.untyped_storage()
    if local.numel():
        return int(storage.data_ptr() + local.storage_offset() * local.element_size())
    return id(value) if storage.nbytes() > value.numel() * value.element_size() else int(storage._cdata)


def is_sharded_alike(one: Any, other: Any) -> bool:
    """Whether two tensors over the same memory are the same part of their wholes."""
    if not (is_dtensor(one) and is_dtensor(other)):
        return True
    return bool(one.placements == other.placements and one.device_mesh == other.device_mesh)


@lru_cache(maxsize=16_384)  # a state names few meshes and many shapes, and asks again at each save
def _shards_on_mesh(shape: tuple[int, ...], mesh: Any, placements: tuple[Any, ...], rank: int) -> TensorShards:
    """The shards of a rank by mesh and placements. ``rank`` is given, because torch reuses meshes of earlier worlds."""
    from torch.distributed.tensor import Replicate, Shard

    for placement in placements:
        if type(placement) not in (Replicate, Shard):
            raise UnsupportedSharding(
                f"<DTensor placed as {placement}> cannot be stored: redistribute it to Shard or Replicate"
            )
    ranks = mesh.mesh
    found = (ranks == rank).nonzero().tolist()
    if not found:
        return TensorShards(shape, ())  # other ranks have it
    offsets, sizes = [0] * len(shape), list(shape)
    for placement, extent, at in zip(placements, ranks.shape, found[0], strict=True):
        if isinstance(placement, Shard):  # as torch.chunk divides
            size = sizes[placement.dim]
            step = -(-size // extent)
            first = min(step * at, size)
            offsets[placement.dim] += first
            sizes[placement.dim] = min(step, size - first)
    box = Box(tuple(offsets), tuple(sizes))
    index = tuple(at if isinstance(each, Shard) else slice(None) for each, at in zip(placements, found[0], strict=True))
    replicas = ranks[index].flatten().tolist()
    return TensorShards(shape, (box,) if box.elements else (), tuple(replicas) if len(replicas) > 1 else ())
