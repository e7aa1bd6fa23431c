from __future__ import annotations

from typing import Any

import pytest
import torch

from chockstone.checkpoints.errors import SaveAbandoned, StoreFull
from chockstone.checkpoints.ranks.ownership import tail_start
from chockstone.checkpoints.ranks.part_write import PartWrite
from chockstone.checkpoints.saving.pace import Pace
from support.checkpoints.shares import Shares, make_shares

STATE: dict[str, Any] = {"model": {"a": torch.arange(900_001), "b": torch.arange(77, dtype=torch.uint8)}}


class Memory:
    """A target that keeps the bytes of the archive's body."""

    def __init__(self, shares: Shares) -> None:
        self.start = shares.layout.body_offset
        self.content = bytearray(len(shares.body))

    def write_at(self, offset: int, data: memoryview) -> None:
        self.content[offset - self.start : offset - self.start + len(data)] = data


class FullDisk:
    def write_at(self, offset: int, data: memoryview) -> None:
        raise StoreFull(f"no room for {len(data)} bytes at {offset}")


def make_part(shares: Shares, rank: int, target: Any, *, is_abandoned: bool = False) -> PartWrite:
    return PartWrite(
        shares.ranks[rank],
        shares.layout,
        [chunk for chunk in shares.ownership.pure if chunk.owner == rank],
        target,
        finish=lambda: f"receipt of rank {rank}",
        on_bytes=lambda _: None,
        is_abandoned=lambda: is_abandoned,
        pace=Pace(),
    )


def test_the_parts_of_all_ranks_are_the_body_and_its_digests() -> None:
    shares = make_shares(STATE, world_size=2)
    target = Memory(shares)
    parts = [make_part(shares, rank, target) for rank in range(2)]

    for part in parts:
        part.start()
    for chunks in shares.ownership.rounds:
        for chunk in chunks:
            parts[chunk.owner].offer(chunk, shares.received(chunk))
    for part in parts:
        part.end_offers()

    assert [part.wait(30) for part in parts] == [True, True]
    assert [part.error for part in parts] == [None, None]
    assert [part.receipt for part in parts] == ["receipt of rank 0", "receipt of rank 1"]
    tail = tail_start(shares.layout) - shares.layout.body_offset
    assert target.content[:tail] == shares.body[:tail]
    assert parts[0].remainder + parts[1].remainder == shares.body[tail:]
    assert sorted([*parts[0].digests, *parts[1].digests]) == list(range(shares.layout.block_count))


@pytest.mark.parametrize("why", ["full", "abandoned"])
def test_a_part_that_failed_says_why_and_leaves_no_receipt(why: str) -> None:
    shares = make_shares(STATE, world_size=2)
    target = FullDisk() if why == "full" else Memory(shares)
    part = make_part(shares, 1, target, is_abandoned=why == "abandoned")

    part.start()
    part.end_offers()

    assert part.wait(30)
    assert isinstance(part.error, StoreFull if why == "full" else SaveAbandoned)
    assert part.receipt == ""
    part.stop()
