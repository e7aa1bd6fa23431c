from __future__ import annotations

import random
from itertools import pairwise

import numpy as np
import pytest

from chockstone.checkpoints.format.byte_runs import ByteRun, ByteRuns
from chockstone.checkpoints.format.layout import Layout, plan_layout
from chockstone.checkpoints.ranks import ranked_save
from chockstone.checkpoints.ranks.ownership import Chunk, Ownership, plan_ownership, tail_start
from chockstone.checkpoints.ranks.ranked_save import RankedSaveCache

MIB = 1024**2


def layout(size: int) -> Layout:
    return plan_layout([("state.json", 100), ("model.safetensors", size)], manifest_bytes=4096, block_bytes=MIB)


def divided(place: Layout, world_size: int, chance: random.Random) -> list[ByteRuns]:
    """Every tensor byte with some rank, in stretches of any length."""
    start, end = place.members[1].offset + 4096, place.members[1].end
    cuts = sorted({start, end, *(chance.randint(start, end) for _ in range(chance.randint(0, 12)))})
    runs: list[list[ByteRun]] = [[] for _ in range(world_size)]
    for a, b in pairwise(cuts):
        runs[chance.randrange(world_size)].append(ByteRun(a, b - a, b - a, 1))
    return [ByteRuns.of(each) for each in runs]


def plan(place: Layout, supplies: list[ByteRuns], unit_bytes: int) -> Ownership:
    return plan_ownership(place, supplies, unit_bytes=unit_bytes, shared_from=place.members[1].header_offset)


def all_chunks(ownership: Ownership, world_size: int) -> list[Chunk]:
    return sorted((chunk for rank in range(world_size) for chunk in ownership.of(rank)), key=lambda chunk: chunk.start)


@pytest.mark.parametrize("unit_bytes", [1, 3 * MIB, 5 * MIB + 4096, 10**12])
@pytest.mark.parametrize("seed", range(8))
def test_every_byte_and_every_block_has_one_owner(seed: int, unit_bytes: int) -> None:
    chance = random.Random(seed)
    world_size = chance.randint(1, 5)
    place = layout(chance.choice([5000, MIB, 7 * MIB + 12, 60 * MIB]))
    supplies = divided(place, world_size, chance)

    chunks = all_chunks(plan(place, supplies, unit_bytes), world_size)

    assert [chunks[0].start, *(chunk.end for chunk in chunks)] == [
        *(chunk.start for chunk in chunks),
        place.body_end,
    ]
    assert chunks[0].start == place.body_offset
    assert [block for chunk in chunks for block in chunk.blocks] == list(range(place.block_count))
    assert all(chunk.needed_to == max(chunk.end, place.block_range(chunk.blocks[-1])[1]) for chunk in chunks)
    assert chunks[0].owner == chunks[-1].owner == 0


@pytest.mark.parametrize("unit_bytes", [3 * MIB, 5 * MIB + 4096])
def test_no_unit_of_the_store_is_divided(unit_bytes: int) -> None:
    place = layout(60 * MIB)
    owners: dict[int, set[int]] = {}

    for chunk in all_chunks(plan(place, divided(place, 4, random.Random(1)), unit_bytes), 4):
        for unit in range(chunk.start // unit_bytes, -(-min(chunk.end, tail_start(place)) // unit_bytes)):
            owners.setdefault(unit, set()).add(chunk.owner)

    assert all(len(ranks) == 1 for ranks in owners.values())


def test_chunks_that_are_not_exchanged_need_nothing_of_others() -> None:
    place = layout(60 * MIB)
    supplies = divided(place, 3, random.Random(5))

    ownership = plan(place, supplies, 1)

    assert ownership.pure and ownership.rounds
    for chunk in ownership.pure:
        for rank, runs in enumerate(supplies):
            first, last = runs.before(np.array([chunk.start, chunk.needed_to]))
            assert rank == chunk.owner or first == last


def test_who_supplies_a_stretch_owns_it() -> None:
    place = layout(64 * MIB)
    start, end = place.members[1].offset + 4096, place.members[1].end
    middle = (start + end) // 2
    halves = [
        ByteRuns.of([ByteRun(start, middle - start, middle - start, 1)]),
        ByteRuns.of([ByteRun(middle, end - middle, end - middle, 1)]),
    ]

    ownership = plan(place, halves, 1)

    written = [sum(chunk.end - chunk.start for chunk in ownership.of(rank)) for rank in range(2)]
    assert abs(written[0] - written[1]) < 4 * MIB
    assert sum(chunk.end - chunk.start for turn in ownership.rounds for chunk in turn) < 2 * MIB


def test_columns_that_all_supply_alike_are_spread_evenly() -> None:
    place = layout(64 * MIB)
    start = place.members[1].offset + 4096
    columns = [ByteRuns.of([ByteRun(start + rank * 1024, 1024, 4096, 16 * 1024 - 1)]) for rank in range(4)]

    ownership = plan(place, columns, 1)

    written = [sum(chunk.end - chunk.start for chunk in ownership.of(rank)) for rank in range(4)]
    assert max(written) - min(written) <= 4 * MIB
    assert all(len({chunk.owner for chunk in turn}) > 1 for turn in ownership.rounds[:-1])


def test_who_writes_what_is_worked_out_once_while_nothing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    place, larger = layout(20 * MIB), layout(21 * MIB)
    supplies = divided(place, 2, random.Random(1))
    kept = RankedSaveCache()
    asked = {"unit_bytes": 1, "shared_from": place.members[1].header_offset, "chunk_bytes": 4 * MIB}
    planned: list[Layout] = []
    monkeypatch.setattr(ranked_save, "plan_ownership", lambda place, *_, **__: planned.append(place))

    for wanted in (place, place, larger, place):
        kept.plan(wanted, supplies, **asked)
    kept.learn(supplies, ["a", "b"])
    kept.plan(place, supplies, **asked)

    assert planned == [place, larger, place, place]
