from __future__ import annotations

import torch

from chockstone.checkpoints import Pieces
from chockstone.checkpoints.format.shards import (
    Box,
    Boxes,
    TensorShards,
    address_of,
    is_dtensor,
    is_sharded_alike,
    local_tensor_of,
    local_tensors_of,
    shards_of,
)


def test_a_tensor_that_every_process_has_whole_has_no_shards() -> None:
    plain = torch.zeros(3)

    assert shards_of(plain) is None
    assert not is_dtensor(plain)
    assert local_tensor_of(plain) is plain
    assert is_sharded_alike(plain, torch.zeros(3))


def test_pieces_are_boxes_of_one_dimension() -> None:
    first, second = torch.zeros(3), torch.ones(4)

    pieces = Pieces((2, 5), torch.float32, [(0, first), (6, second)])
    shards = shards_of(pieces)

    assert shards is not None
    assert (shards.shape, shards.boxes) == ((10,), (Box((0,), (3,)), Box((6,), (4,))))
    assert not shards.is_whole
    assert local_tensors_of(pieces) == (first, second)
    assert address_of(pieces) == id(pieces)


def test_boxes_have_the_dimensions_of_the_whole_or_one() -> None:
    right, row = torch.zeros(2, 3), torch.ones(4)

    boxes = Boxes((2, 5), torch.float32, [((0, 2), right)])
    flat = Boxes((2, 5), torch.float32, [((6,), row)], is_flat=True)

    assert shards_of(boxes) == TensorShards((2, 5), (Box((0, 2), (2, 3)),))
    assert local_tensors_of(boxes) == (right,)
    assert shards_of(flat) == TensorShards((10,), (Box((6,), (4,)),))
    assert address_of(boxes) == id(boxes)


def test_rows_of_a_box_begin_at_its_own_offset() -> None:
    box = Box((4, 1), (6, 3))

    assert box.rows(2, 5) == Box((6, 1), (3, 3))
    assert box.elements == 18
