from __future__ import annotations

from typing import Any

import pytest
import torch

from chockstone.checkpoints import Pieces
from chockstone.checkpoints.errors import SaveFailed
from chockstone.checkpoints.ranks.share import cut_extents
from support.checkpoints.shares import make_shares

STATE: dict[str, Any] = {
    "model": {"large": torch.arange(700_001, dtype=torch.float32), "odd": torch.arange(33, dtype=torch.uint8)},
    "more": torch.arange(1_000_000, dtype=torch.int64).reshape(1000, 1000),
}


@pytest.mark.parametrize("world_size", [2, 3])
def test_the_shares_of_all_ranks_are_the_body_of_the_archive(world_size: int) -> None:
    shares = make_shares(STATE, world_size=world_size)
    start = shares.layout.body_offset
    body = bytearray(len(shares.body))

    for rank, share in enumerate(shares.ranks):
        for chunk in shares.ownership.of(rank):
            extents = share.extents(chunk, shares.received(chunk))
            for offset, content in cut_extents(extents, chunk.start, chunk.end):
                body[offset - start : offset - start + len(content)] = content
            share.release(extents)

    assert body[: len(shares.body)] == shares.body


def test_elements_that_no_rank_has_are_named() -> None:
    half = torch.zeros(2_000_000)
    state = {"model": {"half": Pieces((4_000_000,), torch.float32, [(0, half), (2_000_000, half)])}}
    shares = make_shares(state, world_size=2)

    with pytest.raises(SaveFailed, match="model.half: (two ranks have the same|some of its elements no rank has)"):
        for chunk in (*shares.ownership.pure, *(each for row in shares.ownership.rounds for each in row)):
            shares.ranks[chunk.owner].extents(chunk, shares.received(chunk))
