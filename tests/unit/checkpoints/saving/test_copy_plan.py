from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch

from chockstone.checkpoints import Pieces
from chockstone.checkpoints.errors import UnstorableValue
from chockstone.checkpoints.format.byte_runs import spread
from chockstone.checkpoints.format.tar import PAGE
from chockstone.checkpoints.format.tree import flatten
from chockstone.checkpoints.saving.copy_plan import SMALL_BYTES, CopyPlan, plan_copies
from chockstone.checkpoints.saving.snapshot import Snapshotter, arrange

LARGE = SMALL_BYTES // 4


def plans(state: dict[str, Any], world_size: int) -> list[CopyPlan]:
    leaves = flatten(state).leaves
    places = arrange(leaves).places
    return [plan_copies(leaves, places, rank=rank, world_size=world_size) for rank in range(world_size)]


def covered(plan: CopyPlan) -> list[tuple[int, int]]:
    starts, lengths = spread(list(plan.runs.within(0, 2**60)))
    return [(int(start), int(start + length)) for start, length in zip(starts, lengths, strict=True)]


@pytest.mark.parametrize("world_size", [1, 2, 3, 7])
def test_what_all_have_is_divided_among_all_without_a_gap(world_size: int) -> None:
    state = {"a": torch.zeros(50, LARGE // 10), "b": {"c": torch.zeros(LARGE), "d": torch.zeros(3)}}

    planned = plans(state, world_size)

    spans = sorted(span for plan in planned for span in covered(plan))
    total = 4 * (50 * (LARGE // 10) + LARGE + 3)
    assert sum(end - start for start, end in spans) == total
    assert all(end <= start for (_, end), (start, _) in pairwise(spans))
    if world_size < 7:
        assert max(s.runs.size for s in planned) - min(s.runs.size for s in planned) < LARGE


def test_small_values_come_from_one_rank() -> None:
    """Those that ranks may not have in common, such as the state of a generator, must not be mixed."""
    state = {"random": torch.get_rng_state(), "array": np.zeros(2 * SMALL_BYTES, dtype=np.uint8)}

    first, second = plans(state, 2)

    assert first.runs.size == 5056 + 2 * SMALL_BYTES
    assert second.runs.size == 0


def test_pages_of_the_file_are_pages_of_memory() -> None:
    state = {"odd": torch.zeros(17), "large": torch.zeros(50, LARGE // 10 + 1), "more": torch.zeros(LARGE + 3)}

    for plan in plans(state, 3):
        for place, row in zip(plan.places, plan.runs.rows, strict=True):
            assert place % PAGE == row[0] % PAGE


def test_one_process_saves_pieces_that_are_the_whole() -> None:
    flat = torch.arange(10.0)
    state = {"whole": Pieces((2, 5), torch.float32, [(0, flat[:3]), (3, flat[3:])]), "other": torch.ones(2)}

    snapshot = Snapshotter().take(state)

    section = snapshot.sections[0]
    assert snapshot.memory[section.start : section.start + section.size].tobytes() == flat.numpy().tobytes()


def test_one_process_does_not_save_a_part() -> None:
    with pytest.raises(UnstorableValue, match="whole.value: this process has only a part"):
        Snapshotter().take({"whole": Pieces((10,), torch.float32, [(0, torch.zeros(9))])})


@pytest.mark.parametrize(
    ("pieces", "says"),
    [
        ([(0, torch.zeros(2, 2))], "2 dimensions"),
        ([(0, torch.zeros(2, dtype=torch.int64))], "int64"),
        ([(9, torch.zeros(2))], "elements 9 to 11 of 10"),
        ([(4, torch.zeros(2)), (5, torch.zeros(2))], "overlap"),
        ([(-1, torch.zeros(2))], "elements -1 to 1"),
    ],
)
def test_pieces_that_cannot_be_are_refused(pieces: list[tuple[int, torch.Tensor]], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Pieces((10,), torch.float32, pieces)
