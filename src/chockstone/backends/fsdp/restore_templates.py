"""Restore templates: which parts of an archive this process reads.

The state of a full fine-tuning run is several times as large as the model. Each process reads only its own rows of
every weight and of every flat tensor of the same layout. It reads the rest of the archive, which is small, in full.
"""

from __future__ import annotations

import math
from collections.abc import MutableMapping
from typing import Any

import torch

from chockstone.backends.fsdp.model_shards import ModelShards
from chockstone.checkpoints import Archive
from chockstone.checkpoints.format.shards import Pieces
from chockstone.checkpoints.format.tree import TensorReference, unflatten
from chockstone.checkpoints.restoring.destinations import RestoreDestinations


def make_restore_template(archive: Archive, shards: ModelShards) -> MutableMapping[str, Any]:
    """The archive's state, with empty Pieces for this process's rows of sharded tensors and None for other tensors."""
    places = RestoreDestinations(archive)
    total = sum(math.prod(share.shape) for share in shards.shares.values())

    def make_room(reference: TensorReference) -> Pieces | None:
        _, dtype, shape = places.find(reference)
        number_type = getattr(torch, dtype.torch_name)
        share = shards.shares.get(reference.key)
        if share is not None and share.shape == shape:
            mine = torch.empty(math.prod(share.local_shape), dtype=number_type)
            return Pieces(shape, number_type, [(share.first_element, mine)])
        return _flat_pieces(shards, total, number_type) if shape == (total,) else None

    state: MutableMapping[str, Any] = unflatten(archive.state(), make_room)
    return state


def _flat_pieces(shards: ModelShards, total: int, number_type: torch.dtype) -> Pieces:
    pieces: list[tuple[int, torch.Tensor]] = []
    start = 0
    for share in shards.shares.values():
        pieces.append((start + share.first_element, torch.empty(math.prod(share.local_shape), dtype=number_type)))
        start += math.prod(share.shape)
    return Pieces((total,), number_type, pieces)
