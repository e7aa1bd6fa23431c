"""Random generators of several ranks: each rank gets its own back, and a new rank is seeded."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from support.checkpoints.random_jobs import restore_and_draw, save_and_draw

if TYPE_CHECKING:
    from support.rank_pool import RankPool


def test_each_rank_draws_what_it_would_have_drawn(ranks: RankPool, tmp_path: Path) -> None:
    drawn = ranks.run(2, save_and_draw, tmp_path, True)

    restored = ranks.run(2, restore_and_draw, tmp_path)

    assert drawn[0] != drawn[1]
    assert restored == [(each, "states of 2 ranks") for each in drawn]


def test_a_smaller_world_takes_the_states_of_the_first_ranks(ranks: RankPool, tmp_path: Path) -> None:
    drawn = ranks.run(2, save_and_draw, tmp_path, True)

    restored = ranks.run(1, restore_and_draw, tmp_path)

    assert restored == [(drawn[0], "states of 1 of the 2 ranks that were saved")]


def test_a_larger_world_seeds_the_ranks_without_a_state(ranks: RankPool, tmp_path: Path) -> None:
    drawn = ranks.run(1, save_and_draw, tmp_path, True)

    first, second = ranks.run(2, restore_and_draw, tmp_path)
    again = ranks.run(2, restore_and_draw, tmp_path)

    said = "the state of 1 rank; seeded anew: rank 1"
    assert first == (drawn[0], said)
    assert second[1] == said
    assert second[0] != first[0]
    assert again == [first, second]


def test_a_state_of_rank_0_alone_seeds_the_other_ranks(ranks: RankPool, tmp_path: Path) -> None:
    drawn = ranks.run(2, save_and_draw, tmp_path, False)

    first, second = ranks.run(2, restore_and_draw, tmp_path)

    assert first == (drawn[0], "the state of 1 rank; seeded anew: rank 1")
    assert second[0] not in (first[0], drawn[1])
